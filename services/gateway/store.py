"""SQL of keys, files and requests. The read models' SQL is in readmodels.py."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeVar
from uuid import uuid4

from schemas.base import FileRef
from schemas.job import RetryJob, SubmitJob
from schemas.model import NO_TEMPLATE_SHA256
from schemas.specification import DatasetFormat, Tier
from services.gateway.access import Principal, key_digest
from services.gateway.decide import BaseModel
from services.gateway.model import (
    IdempotentRequest,
    JsonObject,
    Row,
    StoredFile,
    Upload,
    UploadPart,
)
from services.gateway.quotas import Quotas
from shared.postgres.database import Connection, Database, lock_name
from shared.postgres.rows import read

Source = Connection | Database
R = TypeVar("R", bound=Row)
UploadEnd = Literal["completed", "cancelled"]
Order = Literal["asc", "desc"]
"""Order by the time of creation."""


def columns(kind: type[Row]) -> str:
    return ", ".join(kind.model_fields)


FIND_PRINCIPAL = """
    SELECT tenant.name, tenant.tier, tenant.quotas, api_key.id AS key_id
      FROM api_key JOIN tenant ON tenant.name = api_key.tenant
     WHERE api_key.sha256 = $1 AND api_key.revoked_at IS NULL"""
# A session lasts as long as its key, and at most until it expires.
FIND_SESSION = """
    SELECT tenant.name, tenant.tier, tenant.quotas, api_key.id AS key_id
      FROM page_session JOIN api_key ON api_key.id = page_session.key_id JOIN tenant ON tenant.name = api_key.tenant
     WHERE page_session.sha256 = $1 AND page_session.expires_at > now() AND api_key.revoked_at IS NULL"""
FIND_OPERATORS_SESSION = """
    SELECT true FROM page_session WHERE sha256 = $1 AND key_id = $2 AND expires_at > now()"""
INSERT_SESSION = "INSERT INTO page_session (sha256, key_id, expires_at) VALUES ($1, $2, now() + $3::interval)"
DELETE_SESSION = "DELETE FROM page_session WHERE sha256 = $1"
INSERT_TENANT = "INSERT INTO tenant (name, tier) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING true"
INSERT_KEY = """
    INSERT INTO api_key (id, tenant, sha256, prefix) VALUES ($1, $2, $3, $4)
    ON CONFLICT (sha256) DO NOTHING"""
REVOKE_KEYS = """
    UPDATE api_key SET revoked_at = $2 WHERE tenant = $1 AND revoked_at IS NULL RETURNING id"""
SET_TOPICS = "UPDATE tenant SET has_topics = true WHERE name = $1"
HAS_TOPICS = "SELECT has_topics FROM tenant WHERE name = $1"
TENANTS_ON_BASE = """
    SELECT name FROM tenant
     WHERE EXISTS (SELECT FROM model WHERE tenant = name AND base_sha = $1 AND stage <> 'archived')
        OR EXISTS (SELECT FROM job WHERE tenant = name AND spec ->> 'base_sha' = $1
                                     AND state NOT IN ('succeeded', 'failed', 'cancelled'))
     ORDER BY name"""
TIER_OF = "SELECT tier FROM tenant WHERE name = $1"
FIND_QUOTAS = "SELECT quotas FROM tenant WHERE name = $1"
SET_QUOTAS = "UPDATE tenant SET quotas = $2 WHERE name = $1 RETURNING true"
# A sweep counts as so many jobs as it may have at once, whether they run at this moment or not.
COUNT_OPEN_JOBS = """
    SELECT ((SELECT count(*) FROM (
        SELECT job_id FROM job WHERE tenant = $1 AND state NOT IN ('succeeded', 'failed', 'cancelled')
        UNION SELECT job_id FROM asked_job WHERE tenant = $1 AND asked_at > $2) AS open)
        + (SELECT coalesce(sum(greatest(0, (spec ->> 'concurrency')::int - (
               SELECT count(*) FROM trial JOIN job USING (job_id)
                WHERE trial.sweep_id = sweep.sweep_id AND job.state NOT IN ('succeeded', 'failed', 'cancelled'))
           )), 0) FROM sweep WHERE tenant = $1 AND state = 'running'))::bigint"""
COUNT_OPEN_DATASETS = "SELECT count(*) FROM dataset WHERE tenant = $1 AND state = 'validating'"
COUNT_BYTES = "SELECT coalesce(sum(size_bytes), 0)::bigint FROM file WHERE tenant = $1 AND state <> 'deleted'"
COUNT_COMMANDS = "SELECT coalesce(sum(count), 0)::bigint FROM commands_of_day WHERE tenant = $1 AND day = $2"
# Its row is held until the commit: two requests of a tenant do not both take the last of a quota.
ADD_COMMANDS = """
    INSERT INTO commands_of_day (tenant, day, count) VALUES ($1, $2, $3)
    ON CONFLICT (tenant, day) DO UPDATE SET count = commands_of_day.count + $3 RETURNING count"""
FORGET_DAYS = "DELETE FROM commands_of_day WHERE tenant = $1 AND day < $2"
ASK_JOB = "INSERT INTO asked_job (command_id, job_id, tenant, asked_at) VALUES ($1, $2, $3, $4)"
ANSWER_JOB = "DELETE FROM asked_job WHERE tenant = $1 AND (job_id = $2 OR command_id = $3)"
IS_ASKED = "SELECT EXISTS (SELECT FROM asked_job WHERE tenant = $2 AND job_id = $1)"
FORGET_ASKED = "DELETE FROM asked_job WHERE tenant = $1 AND asked_at <= $2"
# As HOLD_FILE: a deletion of the holdout waits, and sees that the evaluation needs it.
HOLD_HOLDOUT = """
    SELECT FROM file WHERE file_id = (SELECT spec -> 'holdout' ->> 'file_id' FROM job
                                       WHERE job_id = (SELECT job_id FROM model WHERE model_id = $1)) FOR SHARE"""
ASK_EVALUATION = """
    INSERT INTO asked_evaluation (command_id, model_id, job_id, asked_at)
    SELECT $1, model_id, job_id, $3 FROM model WHERE model_id = $2"""
ANSWER_EVALUATION = "DELETE FROM asked_evaluation WHERE command_id = $1"
# A file is `uploading`, `uploaded`, `deleting` while something needs its bytes, `removing`, and `deleted`.
IS_BEING_REMOVED = "SELECT EXISTS (SELECT FROM file WHERE sha256 = $1 AND state = 'removing')"
INSERT_FILE = """
    INSERT INTO file (file_id, tenant, sha256, size_bytes, filename, purpose, format, num_rows, created_at, upload_id,
                      state)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 'uploading')"""
INSERT_UPLOAD = f"""
    INSERT INTO upload (upload_id, tenant, filename, purpose, size_bytes, created_at) VALUES ($1, $2, $3, $4, $5, $6)
    RETURNING {columns(Upload)}"""
FIND_UPLOAD = f"SELECT {columns(Upload)} FROM upload WHERE upload_id = $1 AND tenant = $2"
END_UPLOAD = f"""
    UPDATE upload SET state = $2, file_id = $3 WHERE upload_id = $1 AND state = 'pending'
    RETURNING {columns(Upload)}"""
# They last as long from now on as if they had just come.
HOLD_PARTS = f"""
    UPDATE file SET created_at = $3
     WHERE upload_id = $1 AND file_id = ANY ($2::text[]) AND state = 'uploading' RETURNING {columns(UploadPart)}"""
DELETE_PARTS = """
    UPDATE file SET state = 'deleting', deleted_at = $2 WHERE upload_id = $1 AND state = 'uploading'
    RETURNING file_id"""
CONFIRM_FILE = "UPDATE file SET state = 'uploaded' WHERE file_id = $1 AND state = 'uploading' RETURNING true"
FILE_COLUMNS = columns(StoredFile)
FIND_FILE = f"SELECT {FILE_COLUMNS} FROM file WHERE file_id = $1 AND tenant = $2 AND state = 'uploaded'"
# A deletion waits for whoever is about to name the file in a command, and sees what the command needs.
HOLD_FILE = f"{FIND_FILE} FOR SHARE"
IS_DELETED = "SELECT state <> 'uploaded' FROM file WHERE file_id = $1 FOR SHARE"
LIST_FILES = f"""
    SELECT {FILE_COLUMNS} FROM file
     WHERE tenant = $1 AND state = 'uploaded' AND ($2::text IS NULL OR purpose = $2)
       AND ($3::text IS NULL OR (created_at, file_id) <
            (SELECT created_at, file_id FROM file WHERE file_id = $3 AND tenant = $1))
     ORDER BY created_at DESC, file_id DESC LIMIT $4"""
LIST_FILES_FROM_OLDEST = f"""
    SELECT {FILE_COLUMNS} FROM file
     WHERE tenant = $1 AND state = 'uploaded' AND ($2::text IS NULL OR purpose = $2)
       AND ($3::text IS NULL OR (created_at, file_id) >
            (SELECT created_at, file_id FROM file WHERE file_id = $3 AND tenant = $1))
     ORDER BY created_at, file_id LIMIT $4"""
HAS_FILE = "SELECT EXISTS (SELECT FROM file WHERE file_id = $1 AND tenant = $2)"
DELETE_FILE = """
    UPDATE file SET deleted_at = coalesce(deleted_at, $3),
                    state = CASE state WHEN 'uploaded' THEN 'deleting' ELSE state END
     WHERE file_id = $1 AND tenant = $2 AND state IN ('uploaded', 'deleting', 'removing') RETURNING true"""
STATE_OF_FILE = "SELECT state, sha256 FROM file WHERE file_id = $1"
NEEDED_BY = "SELECT needed_by FROM needed_bytes WHERE tenant = $1 AND sha256 = $2 ORDER BY needed_by"
EXPIRE_UPLOADS = """
    UPDATE file SET state = 'deleting', deleted_at = $2 WHERE state = 'uploading' AND created_at < $1"""
# Another file of the tenant with the same bytes keeps them, for whatever needs them. Scalar, so that it is looked up
# for each file that leaves and not hashed for all.
START_REMOVING = """
    WITH leaving AS (
        SELECT file_id FROM file
         WHERE state = 'deleting' AND ($1::text IS NULL OR file_id = $1)
           AND ((SELECT true FROM file AS twin
                  WHERE twin.sha256 = file.sha256 AND twin.tenant = file.tenant AND twin.state = 'uploaded'
                  LIMIT 1)
                OR NOT EXISTS (SELECT FROM needed_bytes AS need
                                WHERE need.tenant = file.tenant AND need.sha256 = file.sha256))
           FOR UPDATE SKIP LOCKED)
    UPDATE file SET state = 'removing' FROM leaving WHERE file.file_id = leaving.file_id"""
BEING_REMOVED = """
    SELECT DISTINCT sha256 FROM file WHERE state = 'removing' AND ($1::text IS NULL OR file_id = $1)"""
# One statement, so that a file that stops naming the bytes is either among those to remove or still counted.
REMOVABLE = """
    SELECT coalesce(array_agg(file_id) FILTER (WHERE state = 'removing'), '{}') AS file_ids,
           coalesce(bool_or(state IN ('uploading', 'uploaded', 'deleting')), false)
           OR EXISTS (SELECT FROM needed_bytes WHERE needed_bytes.sha256 = $1) AS is_named
      FROM file WHERE sha256 = $1"""
REMOVED = """
    UPDATE file SET state = 'deleted', removed_at = clock_timestamp()
     WHERE file_id = ANY ($1) AND state = 'removing'"""
FIND_BASE = """
    SELECT name, base_sha, detail ->> 'template_sha256' IS DISTINCT FROM $2 AS has_template
      FROM base_model WHERE name = $1"""
CLAIM_KEY = """
    INSERT INTO idempotency (tenant, key, body_sha256) VALUES ($1, $2, $3)
    ON CONFLICT (tenant, key) DO NOTHING RETURNING true"""
FIND_KEY = f"SELECT {columns(IdempotentRequest)} FROM idempotency WHERE tenant = $1 AND key = $2"
SAVE_RESPONSE = "UPDATE idempotency SET response = $3 WHERE tenant = $1 AND key = $2"
INSERT_PLACEHOLDER = """
    INSERT INTO job (job_id, tenant, spec, dataset_id, created_at) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (job_id) DO NOTHING"""
INSERT_RETRY = """
    INSERT INTO job (job_id, tenant, spec, dataset_id, created_at)
    SELECT $1, tenant, spec, dataset_id, $3 FROM job WHERE job_id = $2
    ON CONFLICT (job_id) DO NOTHING"""

PRUNE_STEPS = """
    DELETE FROM step WHERE ctid = ANY(ARRAY(
        SELECT row.ctid FROM ended_job CROSS JOIN LATERAL (
            SELECT ctid FROM step WHERE step.job_id = ended_job.job_id LIMIT $2) AS row
         WHERE ended_at < now() - $1::interval LIMIT $2))"""
PRUNE_EVENTS = """
    DELETE FROM job_event WHERE ctid = ANY(ARRAY(
        SELECT row.ctid FROM ended_job CROSS JOIN LATERAL (
            SELECT ctid FROM job_event WHERE job_event.job_id = ended_job.job_id LIMIT $2) AS row
         WHERE ended_at < now() - $1::interval LIMIT $2))"""
PRUNE_CHECKPOINTS = """
    DELETE FROM checkpoint WHERE ctid = ANY(ARRAY(
        SELECT row.ctid FROM ended_job CROSS JOIN LATERAL (
            SELECT ctid FROM checkpoint WHERE checkpoint.job_id = ended_job.job_id LIMIT $2) AS row
         WHERE ended_at < now() - $1::interval LIMIT $2))"""
# Scalar, so that each table is asked for the job alone.
PRUNE_ENDED = """
    DELETE FROM ended_job WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM ended_job
         WHERE ended_at < now() - $1::interval
           AND (SELECT true FROM step WHERE step.job_id = ended_job.job_id LIMIT 1) IS NULL
           AND (SELECT true FROM job_event WHERE job_event.job_id = ended_job.job_id LIMIT 1) IS NULL
           AND (SELECT true FROM checkpoint WHERE checkpoint.job_id = ended_job.job_id LIMIT 1) IS NULL LIMIT $2))"""
PRUNE_REFUSALS = """
    DELETE FROM refusal WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM refusal WHERE refused_at < now() - $1::interval LIMIT $2))"""
PRUNE_ALERTS = """
    DELETE FROM alert WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM alert WHERE raised_at < now() - $1::interval LIMIT $2))"""
PRUNE_SWEEPS = """
    DELETE FROM sweep WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM sweep WHERE finished_at < now() - $1::interval LIMIT $2))"""
PRUNE_OUTCOMES = """
    DELETE FROM outcome WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM outcome WHERE saved_at < now() - $1::interval LIMIT $2))"""
PRUNE_ASKED_EVALUATIONS = """
    DELETE FROM asked_evaluation WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM asked_evaluation WHERE asked_at < now() - $1::interval LIMIT $2))"""
PRUNE_UPLOADS = """
    DELETE FROM upload WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM upload WHERE created_at < now() - $1::interval LIMIT $2))"""
PRUNE_KEYS = """
    DELETE FROM idempotency WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM idempotency WHERE created_at < now() - $1::interval LIMIT $2))"""
PRUNE_SESSIONS = """
    DELETE FROM page_session WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM page_session WHERE expires_at < now() - $1::interval LIMIT $2))"""
PRUNED = (
    *(PRUNE_STEPS, PRUNE_EVENTS, PRUNE_CHECKPOINTS, PRUNE_ENDED, PRUNE_SWEEPS),
    *(PRUNE_REFUSALS, PRUNE_ALERTS, PRUNE_OUTCOMES, PRUNE_ASKED_EVALUATIONS, PRUNE_UPLOADS),
    *(PRUNE_KEYS, PRUNE_SESSIONS),
)
"""Statements in the order in which they run: what is kept of an ended job goes before the row that names it."""


async def find(kind: type[R], source: Source, query: str, *values: object) -> R | None:
    row = await source.fetchrow(query, *values)
    return None if row is None else read(kind, row)


async def select(kind: type[R], source: Source, query: str, *values: object) -> list[R]:
    return [read(kind, row) for row in await source.fetch(query, *values)]


async def find_principal(database: Database, key: str, defaults: Quotas) -> Principal | None:
    return await _principal(database, FIND_PRINCIPAL, key, defaults)


async def find_visitor(database: Database, token: str, defaults: Quotas) -> Principal | None:
    """Return who logged in to the page with the session's cookie; None once it or its key has ended."""
    return await _principal(database, FIND_SESSION, token, defaults)


async def is_operators_session(database: Database, token: str, key_id: str) -> bool:
    """Whether the operator logged in with the session's cookie and with the key that is the operator's now."""
    return bool(await database.fetchval(FIND_OPERATORS_SESSION, key_digest(token), key_id))


async def _principal(database: Database, query: str, secret: str, defaults: Quotas) -> Principal | None:
    row = await database.fetchrow(query, key_digest(secret))
    if row is None:
        return None
    quotas = defaults.changed_by(row["quotas"])
    return Principal(row["name"], Tier(row["tier"]), quotas, key_id=row["key_id"])


async def add_session(database: Database, token: str, key_id: str, *, lifetime: timedelta) -> None:
    await database.execute(INSERT_SESSION, key_digest(token), key_id, lifetime)


async def end_session(database: Database, token: str) -> None:
    await database.execute(DELETE_SESSION, key_digest(token))


async def add_tenant(conn: Connection, name: str, tier: str) -> bool:
    """Whether the tenant is new."""
    return bool(await conn.fetchval(INSERT_TENANT, name, tier))


async def add_key(conn: Connection, tenant: str, key: str) -> None:
    await conn.execute(INSERT_KEY, f"key-{uuid4().hex[:12]}", tenant, key_digest(key), key[:14])


async def revoke_keys(conn: Connection, tenant: str, *, now: datetime) -> int:
    """How many keys stopped working."""
    return len(await conn.fetch(REVOKE_KEYS, tenant, now))


async def find_tier(source: Source, tenant: str) -> Tier | None:
    tier = await source.fetchval(TIER_OF, tenant)
    return None if tier is None else Tier(tier)


async def find_quotas(source: Source, tenant: str) -> JsonObject | None:
    """What the operator decided for the tenant; None where there is no such tenant."""
    quotas: JsonObject | None = await source.fetchval(FIND_QUOTAS, tenant)
    return quotas


async def set_quotas(conn: Connection, tenant: str, quotas: JsonObject) -> bool:
    """Whether there is such a tenant."""
    return bool(await conn.fetchval(SET_QUOTAS, tenant, quotas))


async def set_topics(conn: Connection, tenant: str) -> None:
    """The tenant's topics exist."""
    await conn.execute(SET_TOPICS, tenant)


async def has_topics(conn: Connection, tenant: str) -> bool:
    return bool(await conn.fetchval(HAS_TOPICS, tenant))


async def tenants_on_base(conn: Connection, base_sha: str) -> list[str]:
    """Tenants that have a model or an open job on these files of a base model."""
    return [row["name"] for row in await conn.fetch(TENANTS_ON_BASE, base_sha)]


async def is_asked(conn: Connection, job_id: str, tenant: str) -> bool:
    """The tenant asked for the job, and the scheduler has not answered yet."""
    return bool(await conn.fetchval(IS_ASKED, job_id, tenant))


async def answer_evaluation(conn: Connection, command_id: str | None) -> None:
    """The command was carried out or refused."""
    await conn.execute(ANSWER_EVALUATION, command_id)


async def reserve_file(
    conn: Connection,
    ref: FileRef,
    *,
    tenant: str,
    purpose: str,
    file_format: DatasetFormat | None,
    num_rows: int,
    now: datetime,
    upload_id: str | None = None,
) -> bool:
    """Name the bytes before they are stored, so that nobody removes them; False while they are being removed."""
    await lock_name(conn, ref.sha256)
    if await conn.fetchval(IS_BEING_REMOVED, ref.sha256):
        return False
    identity = (ref.file_id, tenant, ref.sha256, ref.size_bytes, ref.filename)
    await conn.execute(INSERT_FILE, *identity, purpose, file_format, num_rows, now, upload_id)
    return True


async def insert_upload(
    conn: Connection,
    upload_id: str,
    tenant: str,
    *,
    filename: str,
    purpose: str,
    size_bytes: int,
    now: datetime,
) -> Upload:
    values = upload_id, tenant, filename, purpose, size_bytes, now
    upload = await find(Upload, conn, INSERT_UPLOAD, *values)
    assert upload is not None, "its id is new"
    return upload


async def find_upload(source: Source, upload_id: str, tenant: str) -> Upload | None:
    return await find(Upload, source, FIND_UPLOAD, upload_id, tenant)


async def end_upload(
    conn: Connection, upload_id: str, state: UploadEnd, *, file_id: str | None = None
) -> Upload | None:
    """End the upload and return it; None where it has ended before."""
    return await find(Upload, conn, END_UPLOAD, upload_id, state, file_id)


async def hold_parts(
    conn: Connection, upload_id: str, part_ids: Sequence[str], *, now: datetime
) -> dict[str, UploadPart]:
    """Return the parts that there are, by id; they are not removed before an hour has passed."""
    parts = await select(UploadPart, conn, HOLD_PARTS, upload_id, part_ids, now)
    return {part.file_id: part for part in parts}


async def delete_parts(conn: Connection, upload_id: str, *, now: datetime) -> list[str]:
    return [row["file_id"] for row in await conn.fetch(DELETE_PARTS, upload_id, now)]


async def confirm_file(conn: Connection, file_id: str) -> bool:
    """The bytes are stored. False where the reservation has expired meanwhile."""
    return bool(await conn.fetchval(CONFIRM_FILE, file_id))


async def find_file(source: Source, file_id: str, tenant: str) -> StoredFile | None:
    return await find(StoredFile, source, FIND_FILE, file_id, tenant)


async def hold_file(conn: Connection, file_id: str, tenant: str) -> StoredFile | None:
    """A file that no deletion overtakes before this transaction ends."""
    return await find(StoredFile, conn, HOLD_FILE, file_id, tenant)


async def list_files(
    database: Database, tenant: str, *, purpose: str | None, order: Order, after: str | None, limit: int
) -> list[StoredFile]:
    query = LIST_FILES if order == "desc" else LIST_FILES_FROM_OLDEST
    return await select(StoredFile, database, query, tenant, purpose, after, limit)


async def has_file(database: Database, file_id: str, tenant: str) -> bool:
    """Whether the tenant has or had it."""
    return bool(await database.fetchval(HAS_FILE, file_id, tenant))


async def is_deleted(conn: Connection, file_id: str) -> bool:
    """Whether the file was deleted; if not, it stays until this transaction ends. False for one never uploaded."""
    return bool(await conn.fetchval(IS_DELETED, file_id))


async def delete_file(conn: Connection, file_id: str, tenant: str, *, now: datetime) -> bool:
    """Whether there is such a file, perhaps one that is being deleted already."""
    return bool(await conn.fetchval(DELETE_FILE, file_id, tenant, now))


async def state_of_file(database: Database, file_id: str) -> tuple[str, str]:
    """Return the state of the file, whoever owns it, and the sha256 of its bytes."""
    row = await database.fetchrow(STATE_OF_FILE, file_id)
    assert row is not None, f"{file_id} was never uploaded"
    return row["state"], row["sha256"]


async def needed_by(database: Database, tenant: str, sha256: str) -> list[str]:
    return [row["needed_by"] for row in await database.fetch(NEEDED_BY, tenant, sha256)]


async def start_removing(conn: Connection, file_id: str | None = None) -> list[str]:
    """sha256 of the bytes to remove, of this file or of all: deleted files that nothing needs any more."""
    await conn.execute(START_REMOVING, file_id)
    return [row["sha256"] for row in await conn.fetch(BEING_REMOVED, file_id)]


async def removable(conn: Connection, sha256: str) -> tuple[list[str], bool]:
    """The files that are being removed with these bytes, and whether anything else names the bytes."""
    await lock_name(conn, sha256)
    row = await conn.fetchrow(REMOVABLE, sha256)
    assert row is not None, "an aggregate has one row"
    return row["file_ids"], row["is_named"]


async def find_base(source: Source, name: str) -> BaseModel | None:
    row = await source.fetchrow(FIND_BASE, name, NO_TEMPLATE_SHA256)
    return None if row is None else read(BaseModel, row)


async def claim_key(conn: Connection, tenant: str, key: str, body_sha256: str) -> bool:
    """Whether this is the first request with the key. A second one waits here until the first has committed."""
    return bool(await conn.fetchval(CLAIM_KEY, tenant, key, body_sha256))


async def get_request(conn: Connection, tenant: str, key: str) -> IdempotentRequest:
    """The first request with the key, which has committed."""
    request = await find(IdempotentRequest, conn, FIND_KEY, tenant, key)
    assert request is not None, f"nothing claimed the key {key!r}"
    return request


async def save_response(conn: Connection, tenant: str, key: str, response: JsonObject) -> None:
    await conn.execute(SAVE_RESPONSE, tenant, key, response)


async def insert_placeholder(conn: Connection, command: SubmitJob, *, now: datetime) -> None:
    """Show the job before the scheduler's JobSubmitted has come round."""
    spec = command.spec.model_dump(mode="json")
    await conn.execute(INSERT_PLACEHOLDER, command.job_id, command.tenant, spec, command.dataset_id, now)


async def insert_retry(conn: Connection, command: RetryJob, *, now: datetime) -> None:
    """Show the new job as `insert_placeholder` does; its specification is the other job's."""
    await conn.execute(INSERT_RETRY, command.new_job_id, command.job_id, now)
