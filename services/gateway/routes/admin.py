"""/v1/admin, for the operator's key: tenants, keys and pools."""

from fastapi import APIRouter

from services.gateway import readmodels, store
from services.gateway.access import new_key
from services.gateway.deps import Admin, Context
from services.gateway.errors import not_found
from services.gateway.requests import CreateTenant
from services.gateway.responses import NewTenant, PoolList, RevokedKeys
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
