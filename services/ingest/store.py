"""SQL of ingest; the only file that knows column names."""

from collections.abc import Sequence
from typing import Any

from schemas.base import FileRef
from services.ingest.model import BaseModel, Ready, Rejection, Request, Source, Version, VersionState
from shared.errors import StaleWrite
from shared.postgres.database import Connection

ADD_BASE_MODEL = """
    INSERT INTO base_model (base_sha, manifest_sha256, template_sha256, context_tokens)
    VALUES ($1, $2, $3, $4) ON CONFLICT (base_sha) DO NOTHING"""
FIND_BASE_MODEL = """
    SELECT base_sha, manifest_sha256, template_sha256, context_tokens FROM base_model WHERE base_sha = $1"""
SAVE_SOURCE = """
    INSERT INTO source (kind, name, digest, file) VALUES ($1, $2, $3, $4)
    ON CONFLICT (kind, name) DO UPDATE SET digest = $3, file = $4"""
LIST_SOURCES = "SELECT kind, name, digest, file FROM source ORDER BY kind, name"
SAVE_ANSWER_TOKENS = """
    INSERT INTO gate_policy (answer_tokens) VALUES ($1)
    ON CONFLICT (singleton) DO UPDATE SET answer_tokens = $1"""
FIND_ANSWER_TOKENS = "SELECT answer_tokens FROM gate_policy"
ADD_VERSION = """
    INSERT INTO version (id, tenant, state, base_sha, benchmarks, suites)
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (id) DO NOTHING RETURNING true"""
SAVE_VERSION = """
    UPDATE version SET state = $2, ready = $3, rejection = $4, revision = revision + 1
     WHERE id = $1 AND revision = $5 RETURNING revision"""
FIND_VERSION = """
    SELECT id, tenant, state, base_sha, benchmarks, suites, ready, rejection, revision FROM version
     WHERE id = $1 FOR UPDATE"""
SAVE_REQUEST = """
    INSERT INTO request (dataset_id, tenant, version, is_answered) VALUES ($1, $2, $3, $4)
    ON CONFLICT (dataset_id) DO UPDATE SET is_answered = $4"""
FIND_REQUEST = "SELECT dataset_id, tenant, version, is_answered FROM request WHERE dataset_id = $1"
LIST_REQUESTS = """
    SELECT dataset_id, tenant, version, is_answered FROM request WHERE version = $1 ORDER BY dataset_id"""
ANSWER_REQUESTS = "UPDATE request SET is_answered = true WHERE version = $1 AND NOT is_answered"
OPEN_USE = """
    INSERT INTO job_use (job_id, version) VALUES ($1, $2) ON CONFLICT (job_id) DO UPDATE SET version = $2"""
CLOSE_USE = "DELETE FROM job_use WHERE job_id = $1 RETURNING version"
IS_USED = "SELECT EXISTS (SELECT FROM job_use WHERE version = $1)"
DELETABLE = """
    SELECT v.id FROM version v WHERE v.state = 'deleting'
       AND NOT EXISTS (SELECT FROM job_use u WHERE u.version = v.id)"""


async def add_base_model(conn: Connection, base: BaseModel) -> None:
    await conn.execute(
        ADD_BASE_MODEL, base.base_sha, base.manifest_sha256, base.template_sha256, base.context_tokens
    )


async def find_base_model(conn: Connection, base_sha: str) -> BaseModel | None:
    row = await conn.fetchrow(FIND_BASE_MODEL, base_sha)
    return None if row is None else BaseModel(**row)


async def save_source(conn: Connection, source: Source) -> None:
    await conn.execute(
        SAVE_SOURCE, source.kind, source.name, source.digest, source.file.model_dump(mode="json")
    )


async def save_answer_tokens(conn: Connection, answer_tokens: int) -> None:
    await conn.execute(SAVE_ANSWER_TOKENS, answer_tokens)


async def find_answer_tokens(conn: Connection) -> int | None:
    """Longest answer that the gate lets a model give; None before the evaluator has published it."""
    tokens: int | None = await conn.fetchval(FIND_ANSWER_TOKENS)
    return tokens


async def list_sources(conn: Connection) -> list[Source]:
    return [
        Source(kind=row["kind"], name=row["name"], digest=row["digest"], file=FileRef(**row["file"]))
        for row in await conn.fetch(LIST_SOURCES)
    ]


async def find_version(conn: Connection, version_id: str) -> Version | None:
    """The version, locked until the transaction ends."""
    row = await conn.fetchrow(FIND_VERSION, version_id)
    return None if row is None else _version(row)


async def get_version(conn: Connection, version_id: str) -> Version:
    version = await find_version(conn, version_id)
    if version is None:
        raise LookupError(f"there is no dataset version {version_id}")
    return version


async def add_version(conn: Connection, version: Version) -> None:
    """Raises StaleWrite if somebody else added it since it was looked for."""
    added = await conn.fetchval(
        ADD_VERSION,
        version.id,
        version.tenant,
        version.state,
        version.base_sha,
        version.benchmarks,
        version.suites,
    )
    if added is None:
        raise StaleWrite(f"dataset version {version.id} was added by another request")


async def save_version(conn: Connection, version: Version) -> None:
    """Raises StaleWrite if it was written since it was read."""
    saved = await conn.fetchval(
        SAVE_VERSION,
        version.id,
        version.state,
        version.ready and version.ready.model_dump(mode="json"),
        version.rejection and version.rejection.model_dump(mode="json"),
        version.revision,
    )
    if saved is None:
        raise StaleWrite(f"dataset version {version.id} changed since revision {version.revision}")


async def find_request(conn: Connection, dataset_id: str) -> Request | None:
    row = await conn.fetchrow(FIND_REQUEST, dataset_id)
    return None if row is None else Request(**row)


async def list_requests(conn: Connection, version_id: str) -> list[Request]:
    return [Request(**row) for row in await conn.fetch(LIST_REQUESTS, version_id)]


async def save_request(conn: Connection, request: Request) -> None:
    await conn.execute(SAVE_REQUEST, request.dataset_id, request.tenant, request.version, request.is_answered)


async def answer_requests(conn: Connection, version_id: str) -> None:
    await conn.execute(ANSWER_REQUESTS, version_id)


async def open_use(conn: Connection, job_id: str, version_id: str) -> None:
    await conn.execute(OPEN_USE, job_id, version_id)


async def close_use(conn: Connection, job_id: str) -> str | None:
    """The version that the job used, if it used one."""
    version: str | None = await conn.fetchval(CLOSE_USE, job_id)
    return version


async def is_used(conn: Connection, version_id: str) -> bool:
    return bool(await conn.fetchval(IS_USED, version_id))


async def deletable(conn: Connection) -> Sequence[str]:
    """Marked versions that no attempt needs any more."""
    return [row["id"] for row in await conn.fetch(DELETABLE)]


def _version(row: Any) -> Version:
    return Version(
        id=row["id"],
        tenant=row["tenant"],
        state=VersionState(row["state"]),
        base_sha=row["base_sha"],
        benchmarks=row["benchmarks"],
        suites=row["suites"],
        ready=None if row["ready"] is None else Ready.model_validate(row["ready"]),
        rejection=None if row["rejection"] is None else Rejection.model_validate(row["rejection"]),
        revision=row["revision"],
    )
