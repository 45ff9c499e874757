"""/v1/admin, for the operator's key: tenants, keys and pools."""

from fastapi import APIRouter

from services.gateway import readmodels, representations, responses, store, tenants
from services.gateway.access import new_key
from services.gateway.deps import LARGE_PAGE, Admin, Context, page_size
from services.gateway.errors import not_found
from services.gateway.requests import CreateTenant
from services.gateway.responses import NewTenant, Page, PoolList, RevokedKeys
from services.gateway.routes.kafka_users import add_tenant_user
from services.gateway.usage import apply_limits

router = APIRouter()


@router.post("/admin/tenants", response_model_exclude_none=True)
async def create_tenant(admin: Admin, context: Context, body: CreateTenant) -> NewTenant:
    """A tenant with its first key and its login to Kafka, shown only here. For a tenant that exists: one more key."""
    key = new_key()
    async with context.service.unit() as unit:
        is_new = await store.add_tenant(unit.conn, body.name, body.tier)
        await store.add_key(unit.conn, body.name, key)
        await apply_limits(unit, context.settings.quotas, body.name)
    kafka = await add_tenant_user(context, body.name) if is_new else None
    return NewTenant(object="tenant", name=body.name, is_new=is_new, api_key=key, kafka=kafka)


@router.get("/admin/tenants")
async def list_tenants(
    admin: Admin, context: Context, after: str = "", limit: int = LARGE_PAGE
) -> Page[responses.Tenant]:
    """List tenants by name."""
    size = page_size(limit, at_most=LARGE_PAGE)
    rows = await tenants.list_tenants(context.service.database, after=after, limit=size + 1)
    return representations.page([*map(tenants.tenant, rows)], size=size)


@router.get("/admin/tenants/{tenant}/keys")
async def list_keys(admin: Admin, context: Context, tenant: str) -> Page[responses.ApiKey]:
    """List the newest thousand keys of a tenant, revoked ones too."""
    database = context.service.database
    if await store.find_tier(database, tenant) is None:
        raise not_found("tenant", tenant)
    rows = await tenants.list_keys(database, tenant, limit=LARGE_PAGE + 1)
    return representations.page([*map(tenants.api_key, rows)], size=LARGE_PAGE)


@router.post("/admin/tenants/{tenant}/keys/{key_id}/revoke")
async def revoke_key(admin: Admin, context: Context, tenant: str, key_id: str) -> responses.ApiKey:
    """Make one key stop working; sessions that were begun with it end."""
    async with context.service.unit() as unit:
        row = await tenants.revoke_key(unit.conn, key_id, tenant, now=unit.now)
    if row is None:
        raise not_found("api_key", key_id, param="key_id")
    return tenants.api_key(row)


@router.post("/admin/tenants/{tenant}/keys/revoke")
async def revoke_keys(admin: Admin, context: Context, tenant: str) -> RevokedKeys:
    async with context.service.unit() as unit:
        if await store.find_tier(unit.conn, tenant) is None:
            raise not_found("tenant", tenant)
        revoked = await store.revoke_keys(unit.conn, tenant, now=unit.now)
    return RevokedKeys(object="tenant", name=tenant, revoked_keys=revoked)


@router.get("/admin/pools")
async def pools(admin: Admin, context: Context) -> PoolList:
    return PoolList(object="list", data=tuple(await readmodels.list_pools(context.service.database)))
