"""Tenants and their API keys, as the operator reads them."""

from datetime import datetime

from schemas.specification import Tier
from services.gateway import responses
from services.gateway.model import Row
from services.gateway.representations import unix
from services.gateway.store import Source, columns, find, select
from shared.postgres.database import Connection


class TenantRow(Row):
    name: str
    tier: Tier
    created_at: datetime
    num_keys: int
    """Keys that are not revoked."""


class KeyRow(Row):
    id: str
    prefix: str
    created_at: datetime
    revoked_at: datetime | None


LIST_TENANTS = """
    SELECT name, tier, tenant.created_at,
           (SELECT count(*) FROM api_key WHERE api_key.tenant = tenant.name AND revoked_at IS NULL) AS num_keys
      FROM tenant WHERE name > $1 ORDER BY name LIMIT $2"""
LIST_KEYS = f"SELECT {columns(KeyRow)} FROM api_key WHERE tenant = $1 ORDER BY created_at DESC, id LIMIT $2"
REVOKE_KEY = f"""
    UPDATE api_key SET revoked_at = coalesce(revoked_at, $3) WHERE id = $1 AND tenant = $2
    RETURNING {columns(KeyRow)}"""


async def list_tenants(source: Source, *, after: str, limit: int) -> list[TenantRow]:
    """Return tenants by name."""
    return await select(TenantRow, source, LIST_TENANTS, after, limit)


async def list_keys(source: Source, tenant: str, *, limit: int) -> list[KeyRow]:
    """Return keys of the tenant, revoked ones too, the newest first."""
    return await select(KeyRow, source, LIST_KEYS, tenant, limit)


async def revoke_key(conn: Connection, key_id: str, tenant: str, *, now: datetime) -> KeyRow | None:
    """Return the key, which works no longer; None where the tenant has none of this id."""
    return await find(KeyRow, conn, REVOKE_KEY, key_id, tenant, now)


def tenant(row: TenantRow) -> responses.Tenant:
    return responses.Tenant(
        id=row.name,
        object="tenant",
        tier=row.tier.value,
        created_at=unix(row.created_at),
        active_keys=row.num_keys,
    )


def api_key(row: KeyRow) -> responses.ApiKey:
    return responses.ApiKey(
        id=row.id,
        object="api_key",
        prefix=row.prefix,
        created_at=unix(row.created_at),
        revoked_at=None if row.revoked_at is None else unix(row.revoked_at),
    )
