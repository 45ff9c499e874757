"""/v1/quotas: what a tenant may have and has; /v1/admin/tenants/{tenant}/quotas: what the operator decides."""

from fastapi import APIRouter

from services.gateway import store
from services.gateway.deps import Admin, Caller, Context, Gateway
from services.gateway.errors import not_found
from services.gateway.quotas import Quotas, next_month
from services.gateway.representations import unix
from services.gateway.responses import TenantQuotas
from services.gateway.usage import apply_limits, usage_of

router = APIRouter()


@router.get("/quotas")
async def own(caller: Caller, context: Context) -> TenantQuotas:
    return await _shown(context, caller.tenant)


@router.get("/admin/tenants/{tenant}/quotas")
async def retrieve(admin: Admin, context: Context, tenant: str) -> TenantQuotas:
    return await _shown(context, tenant)


@router.put("/admin/tenants/{tenant}/quotas")
async def decide(admin: Admin, context: Context, tenant: str, body: Quotas) -> TenantQuotas:
    """The body has what differs from the default; null: no limit."""
    async with context.service.unit() as unit:
        if not await store.set_quotas(unit.conn, tenant, body.model_dump(exclude_unset=True)):
            raise not_found("tenant", tenant)
        await apply_limits(unit, context.settings.quotas, tenant)
    return await _shown(context, tenant)


async def _shown(context: Gateway, tenant: str) -> TenantQuotas:
    database = context.service.database
    decided = await store.find_quotas(database, tenant)
    if decided is None:
        raise not_found("tenant", tenant)
    return TenantQuotas(
        object="quotas",
        tenant=tenant,
        limits=context.settings.quotas.changed_by(decided),
        decided=decided,
        used=await usage_of(database, tenant, now=database.now()),
        next_month_at=unix(next_month(database.now())),
    )
