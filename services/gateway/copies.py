"""Facts of tenants on the tenants' own topics, and who has a login to Kafka."""

from schemas.access import KafkaUserReady, KafkaUserRemoved, TenantOpened
from schemas.base import Message
from schemas.model import AdaptersStale
from schemas.topics import tenant_events
from services.gateway import store, tables
from shared.messaging.delivery import topic_named
from shared.messaging.unit import Unit
from shared.postgres.database import Connection


async def copy_for_tenants(event: Message, unit: Unit) -> None:
    """Copy a fact to each tenant that it is about. Measurements may be lost, so they are not copied."""
    if topic_named(unit.topic).is_event_stream:
        for tenant in await _tenants_of(event, unit.conn):
            await unit.copy_to(tenant_events(tenant))


async def _tenants_of(event: Message, conn: Connection) -> list[str]:
    """Return the tenants that the event is about and that have topics."""
    if isinstance(event, AdaptersStale):
        return await store.tenants_on_base(conn, event.stale_sha)
    tenant = getattr(event, "tenant", None)
    return [tenant] if tenant and await store.has_topics(conn, tenant) else []


async def tenant_opened(event: TenantOpened, unit: Unit) -> None:
    await store.set_topics(unit.conn, event.tenant)


async def user_ready(event: KafkaUserReady, unit: Unit) -> None:
    """Note a tenant's topics; for a new tenant this may be heard before TenantOpened, which was written with it."""
    if event.tenant is not None:
        await store.set_topics(unit.conn, event.tenant)


async def user_removed(event: KafkaUserRemoved, unit: Unit) -> None:
    await tables.remove_kafka_user(unit.conn, event.user)
