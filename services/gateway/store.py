"""SQL of keys, files and requests. The read models' SQL is in readmodels.py."""

from datetime import datetime
from typing import Any
from uuid import uuid4

from schemas.base import FileRef
from schemas.specification import DatasetFormat, Tier
from services.gateway.access import Principal, key_digest
from services.gateway.decide import BaseModel, StoredFile
from shared.postgres.database import Connection, Database

FIND_PRINCIPAL = """
    SELECT tenant.name, tenant.tier, api_key.id AS key_id FROM api_key JOIN tenant ON tenant.name = api_key.tenant
     WHERE api_key.sha256 = $1 AND api_key.revoked_at IS NULL"""
INSERT_TENANT = "INSERT INTO tenant (name, tier) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING true"
INSERT_KEY = """
    INSERT INTO api_key (id, tenant, sha256, prefix) VALUES ($1, $2, $3, $4)
    ON CONFLICT (sha256) DO NOTHING"""
REVOKE_KEYS = """
    UPDATE api_key SET revoked_at = $2 WHERE tenant = $1 AND revoked_at IS NULL RETURNING id"""
TIER_OF = "SELECT tier FROM tenant WHERE name = $1"
INSERT_FILE = """
    INSERT INTO file (file_id, tenant, sha256, size_bytes, filename, purpose, format, created_at, num_rows)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"""
FILE_COLUMNS = "file_id, tenant, sha256, size_bytes, filename, purpose, format, created_at, num_rows"
FIND_FILE = f"SELECT {FILE_COLUMNS} FROM file WHERE file_id = $1 AND tenant = $2 AND deleted_at IS NULL"
LIST_FILES = f"""
    SELECT {FILE_COLUMNS} FROM file
     WHERE tenant = $1 AND deleted_at IS NULL AND ($2::text IS NULL OR purpose = $2)
       AND ($3::text IS NULL OR (created_at, file_id) <
            (SELECT created_at, file_id FROM file WHERE file_id = $3 AND tenant = $1))
     ORDER BY created_at DESC, file_id DESC LIMIT $4"""
HAS_FILE = "SELECT EXISTS (SELECT FROM file WHERE file_id = $1 AND tenant = $2)"
DELETE_FILE = """
    UPDATE file SET deleted_at = $3 WHERE file_id = $1 AND tenant = $2 AND deleted_at IS NULL RETURNING true"""
FIND_BASE = "SELECT name, base_sha FROM base_model WHERE name = $1"
CLAIM_KEY = """
    INSERT INTO idempotency (tenant, key, body_sha256) VALUES ($1, $2, $3)
    ON CONFLICT (tenant, key) DO NOTHING RETURNING true"""
FIND_KEY = "SELECT body_sha256, response FROM idempotency WHERE tenant = $1 AND key = $2"
SAVE_RESPONSE = "UPDATE idempotency SET response = $3 WHERE tenant = $1 AND key = $2"
NOTE_SUBMITTED = """
    INSERT INTO job (job_id, tenant, spec, dataset_id, created_at) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (job_id) DO NOTHING"""


async def find_principal(database: Database, key: str) -> Principal | None:
    row = await database.fetchrow(FIND_PRINCIPAL, key_digest(key))
    return None if row is None else Principal(row["name"], Tier(row["tier"]), key_id=row["key_id"])


async def add_tenant(conn: Connection, name: str, tier: str) -> bool:
    """Whether the tenant is new."""
    return bool(await conn.fetchval(INSERT_TENANT, name, tier))


async def add_key(conn: Connection, tenant: str, key: str) -> None:
    await conn.execute(INSERT_KEY, f"key-{uuid4().hex[:12]}", tenant, key_digest(key), key[:14])


async def revoke_keys(conn: Connection, tenant: str, *, now: datetime) -> int:
    """How many keys stopped working."""
    return len(await conn.fetch(REVOKE_KEYS, tenant, now))


async def find_tier(conn: Connection | Database, tenant: str) -> Tier | None:
    tier = await conn.fetchval(TIER_OF, tenant)
    return None if tier is None else Tier(tier)


async def add_file(
    conn: Connection,
    ref: FileRef,
    *,
    tenant: str,
    purpose: str,
    file_format: DatasetFormat | None,
    num_rows: int,
    now: datetime,
) -> None:
    about = (ref.file_id, tenant, ref.sha256, ref.size_bytes, ref.filename, purpose, file_format, now)
    await conn.execute(INSERT_FILE, *about, num_rows)


async def find_file_row(conn: Connection | Database, file_id: str, tenant: str) -> Any:
    return await conn.fetchrow(FIND_FILE, file_id, tenant)


async def find_file(conn: Connection | Database, file_id: str, tenant: str) -> StoredFile | None:
    row = await find_file_row(conn, file_id, tenant)
    if row is None:
        return None
    ref = FileRef(
        file_id=row["file_id"], sha256=row["sha256"], size_bytes=row["size_bytes"], filename=row["filename"]
    )
    found = None if row["format"] is None else DatasetFormat(row["format"])
    return StoredFile(ref, row["purpose"], found, row["created_at"], row["num_rows"])


async def list_files(
    database: Database, tenant: str, *, purpose: str | None, after: str | None, limit: int
) -> list[Any]:
    return await database.fetch(LIST_FILES, tenant, purpose, after, limit)


async def delete_file(conn: Connection, file_id: str, tenant: str, *, now: datetime) -> bool:
    return bool(await conn.fetchval(DELETE_FILE, file_id, tenant, now))


async def find_base(conn: Connection | Database, name: str) -> BaseModel | None:
    row = await conn.fetchrow(FIND_BASE, name)
    return None if row is None else BaseModel(row["name"], row["base_sha"])


async def claim_key(conn: Connection, tenant: str, key: str, body_sha256: str) -> bool:
    """Whether this is the first request with the key. A second one waits here until the first has committed."""
    return bool(await conn.fetchval(CLAIM_KEY, tenant, key, body_sha256))


async def find_key(conn: Connection, tenant: str, key: str) -> Any:
    return await conn.fetchrow(FIND_KEY, tenant, key)


async def save_response(conn: Connection, tenant: str, key: str, response: dict[str, Any]) -> None:
    await conn.execute(SAVE_RESPONSE, tenant, key, response)


async def note_submitted(
    conn: Connection, job_id: str, tenant: str, spec: dict[str, Any], dataset_id: str, *, now: datetime
) -> None:
    """Show the job before the scheduler's JobSubmitted has come round."""
    await conn.execute(NOTE_SUBMITTED, job_id, tenant, spec, dataset_id, now)
