"""Facts of tenants on the tenants' own topics, and who has a login to Kafka."""

from schemas.access import KafkaUserReady, KafkaUserRemoved, TenantOpened
from schemas.base import Message
from schemas.model import AdaptersStale
from schemas.topics import tenant_events
from services.gateway import recent_events, store, tables
from shared.messaging.delivery import topic_named
from shared.messaging.unit import Unit
from shared.postgres.database import Connection


async def copy_for_tenants(event: Message, unit: Unit) -> None:
    """Keep a fact for each tenant that it is about, and copy it there. Measurements may be lost, so they are not."""
    if topic_named(unit.topic).is_event_stream:
        tenants = await _tenants_of(event, unit.conn)
        await recent_events.record(event, unit, tenants)
        for tenant in tenants:
            if await store.has_topics(unit.conn, tenant):
                await unit.copy_to(tenant_events(tenant))


async def _tenants_of(event: Message, conn: Connection) -> list[str]:
    """Return the tenants that the event is about."""
    if isinstance(event, AdaptersStale):
        return await store.tenants_on_base(conn, event.stale_sha)
    tenant = getattr(event, "tenant", None)
    return [tenant] if tenant else []


async def tenant_opened(event: TenantOpened, unit: Unit) -> None:
    await store.set_topics(unit.conn, event.tenant)


async def user_ready(event: KafkaUserReady, unit: Unit) -> None:
    """Note a tenant's topics; for a new tenant this may be heard before TenantOpened, which was written with it."""
    if event.tenant is not None:
        await store.set_topics(unit.conn, event.tenant)


async def user_removed(event: KafkaUserRemoved, unit: Unit) -> None:
    await tables.remove_kafka_user(unit.conn, event.user)
