"""What the broker lets users of Kafka that are made while the platform runs write and read in a time."""

import asyncio

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from deploy.bootstrap import kafka as bootstrap
from deploy.local.site import site as local_site
from schemas.topics import tenant_commands
from shared.messaging.administration import ClientQuotas, quotas_of
from tests.integration.clients.test_doors import Login, Operator, operator
from tests.waiting import PATIENCE_SECONDS, until

__all__ = ["operator"]

pytestmark = pytest.mark.stack


async def test_quotas_come_with_a_user_and_go_with_it(operator):
    _, tenants = await operator.open_tenant()
    _, team = await operator.add_subscriber(topics=["job.events"])
    default = ClientQuotas(1024**2, 16 * 1024**2, 50)
    assert await limits_of(operator, tenants, team) == [default, default]
    await operator.ask("POST", f"/kafka-users/{team.user}/rotate")
    await operator.ask("DELETE", f"/kafka-users/{tenants.user}")
    assert await limits_of(operator, tenants, team) == [ClientQuotas(), default]


async def test_quotas_of_the_settings_of_now_hold_for_users_of_before(operator):
    tenant, login = await operator.open_tenant()
    _, removed = await operator.add_subscriber(topics=["job.events"])
    await operator.ask("DELETE", f"/kafka-users/{removed.user}")
    await operator.stack.stop("accounts")
    await operator.stack.start("accounts", env={"ACCOUNTS_PRODUCER_BYTE_RATE": str(64 * 1024)})

    async def are_renewed() -> bool:
        quotas, none = await limits_of(operator, login, removed)
        return quotas == ClientQuotas(64 * 1024, 16 * 1024**2, 50) and none == ClientQuotas()

    await until(are_renewed, "the quotas of now")
    assert await throttled_after_bytes(login, tenant_commands(tenant).name) < 4 * 1024**2
    await operator.stack.stop("accounts")
    await operator.stack.start("accounts")
    await operator.stack.wait_healthy("accounts")


async def limits_of(operator: Operator, *logins: Login) -> list[ClientQuotas]:
    async with bootstrap.administrator(local_site(operator.stack.state)) as admin:
        limits = await quotas_of(admin, [login.user for login in logins])
    return [limits[login.user] for login in logins]


async def throttled_after_bytes(login: Login, topic: str) -> int:
    """How much a producer writes, as fast as it can, before the broker has it wait."""
    client = AIOKafkaClient(**login.options)
    await client.bootstrap()
    batch = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 512 * 1024)
    batch.append(0, 0, b"k", bytes(256 * 1024), [])
    records, written, throttle_ms = bytes(batch.build()), 0, 0
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not throttle_ms:
            request = ProduceRequest(None, 1, 5000, [(topic, [(0, records)])])
            response = await client.send(client.get_random_node(), request)
            written, throttle_ms = written + len(records), response.throttle_time_ms
    await client.close()
    return written
