"""SQL of ingest; the only file that knows column names."""

from collections.abc import Sequence

from services.ingest.model import BaseModel, Request, Source, Version
from shared.errors import StaleWrite
from shared.postgres.database import Connection
from shared.postgres.rows import Columns, read

BASE_MODEL = Columns("base_sha, manifest_sha256, template_sha256, context_tokens")
SOURCE = Columns("kind, name, digest, file")
NEW_VERSION = Columns("id, tenant, state, base_sha, benchmarks, suites")
SAVED_VERSION = Columns("id, state, ready, rejection, revision")
REQUEST = Columns("dataset_id, tenant, version, is_answered")
ADD_BASE_MODEL = f"""
    INSERT INTO base_model ({BASE_MODEL.names}) VALUES ({BASE_MODEL.parameters()})
    ON CONFLICT (base_sha) DO NOTHING"""
FIND_BASE_MODEL = f"SELECT {BASE_MODEL.selected} FROM base_model WHERE base_sha = $1"
SAVE_SOURCE = f"""
    INSERT INTO source ({SOURCE.names}) VALUES ({SOURCE.parameters()})
    ON CONFLICT (kind, name) DO UPDATE SET digest = $3, file = $4"""
LIST_SOURCES = f"SELECT {SOURCE.selected} FROM source ORDER BY kind, name"
SAVE_ANSWER_TOKENS = """
    INSERT INTO gate_policy (answer_tokens) VALUES ($1)
    ON CONFLICT (singleton) DO UPDATE SET answer_tokens = $1"""
FIND_ANSWER_TOKENS = "SELECT answer_tokens FROM gate_policy"
ADD_VERSION = f"""
    INSERT INTO version ({NEW_VERSION.names}) VALUES ({NEW_VERSION.parameters()})
    ON CONFLICT (id) DO NOTHING RETURNING true"""
SAVE_VERSION = """
    UPDATE version SET state = $2, ready = $3, rejection = $4, revision = revision + 1
     WHERE id = $1 AND revision = $5 RETURNING revision"""
FIND_VERSION = """
    SELECT id, tenant, state, base_sha, benchmarks, suites, ready, rejection, revision FROM version
     WHERE id = $1 FOR UPDATE"""
SAVE_REQUEST = f"""
    INSERT INTO request ({REQUEST.names}) VALUES ({REQUEST.parameters()})
    ON CONFLICT (dataset_id) DO UPDATE SET is_answered = $4"""
FIND_REQUEST = f"SELECT {REQUEST.selected} FROM request WHERE dataset_id = $1"
LIST_REQUESTS = f"SELECT {REQUEST.selected} FROM request WHERE version = $1 ORDER BY dataset_id"
ANSWER_REQUESTS = "UPDATE request SET is_answered = true WHERE version = $1 AND NOT is_answered"
OPEN_USE = """
    INSERT INTO job_use (job_id, version) VALUES ($1, $2) ON CONFLICT (job_id) DO UPDATE SET version = $2"""
CLOSE_USE = "DELETE FROM job_use WHERE job_id = $1 RETURNING version"
IS_USED = "SELECT EXISTS (SELECT FROM job_use WHERE version = $1)"
DELETABLE = """
    SELECT v.id FROM version v WHERE v.state = 'deleting'
       AND NOT EXISTS (SELECT FROM job_use u WHERE u.version = v.id)"""


async def add_base_model(conn: Connection, base: BaseModel) -> None:
    await conn.execute(ADD_BASE_MODEL, *BASE_MODEL.values(base))


async def find_base_model(conn: Connection, base_sha: str) -> BaseModel | None:
    row = await conn.fetchrow(FIND_BASE_MODEL, base_sha)
    return read(BaseModel, row) if row else None


async def save_source(conn: Connection, source: Source) -> None:
    await conn.execute(SAVE_SOURCE, *SOURCE.values(source))


async def save_answer_tokens(conn: Connection, answer_tokens: int) -> None:
    await conn.execute(SAVE_ANSWER_TOKENS, answer_tokens)


async def find_answer_tokens(conn: Connection) -> int | None:
    """Return the tokens of the longest answer that the gate lets a model give; None before the evaluator publishes
    it."""
    tokens: int | None = await conn.fetchval(FIND_ANSWER_TOKENS)
    return tokens


async def list_sources(conn: Connection) -> list[Source]:
    return [read(Source, row) for row in await conn.fetch(LIST_SOURCES)]


async def find_version(conn: Connection, version_id: str) -> Version | None:
    """Return the version, locked until the transaction ends."""
    row = await conn.fetchrow(FIND_VERSION, version_id)
    return read(Version, row) if row else None


async def get_version(conn: Connection, version_id: str) -> Version:
    version = await find_version(conn, version_id)
    if version is None:
        raise LookupError(f"there is no dataset version {version_id}")
    return version


async def add_version(conn: Connection, version: Version) -> None:
    """Add a version. Raises StaleWrite if somebody else added it since it was looked for."""
    if await conn.fetchval(ADD_VERSION, *NEW_VERSION.values(version)) is None:
        raise StaleWrite(f"dataset version {version.id} was added by another request")


async def save_version(conn: Connection, version: Version) -> None:
    """Save a version. Raises StaleWrite if it was written since it was read."""
    if await conn.fetchval(SAVE_VERSION, *SAVED_VERSION.values(version)) is None:
        raise StaleWrite(f"dataset version {version.id} changed since revision {version.revision}")


async def find_request(conn: Connection, dataset_id: str) -> Request | None:
    row = await conn.fetchrow(FIND_REQUEST, dataset_id)
    return read(Request, row) if row else None


async def list_requests(conn: Connection, version_id: str) -> list[Request]:
    return [read(Request, row) for row in await conn.fetch(LIST_REQUESTS, version_id)]


async def save_request(conn: Connection, request: Request) -> None:
    await conn.execute(SAVE_REQUEST, *REQUEST.values(request))


async def answer_requests(conn: Connection, version_id: str) -> None:
    await conn.execute(ANSWER_REQUESTS, version_id)


async def open_use(conn: Connection, job_id: str, version_id: str) -> None:
    await conn.execute(OPEN_USE, job_id, version_id)


async def close_use(conn: Connection, job_id: str) -> str | None:
    """Close the job's use of a version. Return the version, or None if it used none."""
    version: str | None = await conn.fetchval(CLOSE_USE, job_id)
    return version


async def is_used(conn: Connection, version_id: str) -> bool:
    return bool(await conn.fetchval(IS_USED, version_id))


async def deletable(conn: Connection) -> Sequence[str]:
    """Return the marked versions that no attempt needs any more."""
    return [row["id"] for row in await conn.fetch(DELETABLE)]
