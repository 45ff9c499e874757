"""A broker that starts again knows its users, whoever was removed before (decision 0050)."""

from uuid import uuid4

import pytest
from aiokafka.errors import KafkaError

from deploy.local.site import site as local_site
from deploy.local.stack import Stack
from shared.messaging.administration import administrator, list_users, lock_user, scram_user, set_passwords

pytestmark = pytest.mark.stack

PASSWORD = "known"
REMOVED = 100
"""Against some twenty that stay: one of them is the first in any order of hashes, nearly for certain."""


async def test_a_broker_that_starts_again_lets_in_all_but_the_removed(stack: Stack):
    site, mark = local_site(stack.state), uuid4().hex[:8]
    login = (site.kafka_bootstrap, "accounts", site.kafka_password("accounts"))
    removed = [f"subscriber-{mark}-{number}" for number in range(REMOVED)]
    async with administrator(*login) as admin:
        before = await list_users(admin)
        await set_passwords(admin, [scram_user(name, PASSWORD) for name in removed])
        for name in removed:
            await lock_user(admin, name)
    await stack.stop("kafka")
    await stack.start("kafka")
    await stack.wait_healthy("kafka")
    async with administrator(*login) as admin:
        assert await list_users(admin) == before
    with pytest.raises(KafkaError):
        async with administrator(site.kafka_bootstrap, removed[0], PASSWORD):
            pass
