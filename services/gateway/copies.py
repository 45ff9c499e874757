"""Facts of tenants on the tenants' own topics, and who has a login to Kafka."""

from schemas.access import KafkaUserReady, KafkaUserRemoved, TenantOpened
from schemas.base import Message
from schemas.topics import tenant_events
from services.gateway import readmodels, store
from shared.messaging.delivery import topic_named
from shared.messaging.unit import Unit


async def copy_for_tenant(event: Message, unit: Unit) -> None:
    """Facts alone: measurements may be lost, and have their own way."""
    tenant = getattr(event, "tenant", None)
    if tenant and topic_named(unit.topic).is_story and await store.has_topics(unit.conn, tenant):
        await unit.copy_to(tenant_events(tenant))


async def tenant_opened(event: TenantOpened, unit: Unit) -> None:
    await store.set_topics(unit.conn, event.tenant)


async def user_ready(event: KafkaUserReady, unit: Unit) -> None:
    """Of a new tenant it may be heard before TenantOpened, which was written with it."""
    if event.tenant is not None:
        await store.set_topics(unit.conn, event.tenant)
    rights = list(event.reads), list(event.writes), event.group_prefix
    await unit.conn.execute(readmodels.SAVE_KAFKA_USER, event.user, event.tenant, *rights, unit.now)


async def user_removed(event: KafkaUserRemoved, unit: Unit) -> None:
    await unit.conn.execute(readmodels.REMOVE_KAFKA_USER, event.user)
