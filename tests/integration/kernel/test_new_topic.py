"""A release that listens to one topic more than the one before it, whose process had another name in the group."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from deploy.bootstrap.kafka import administrator
from deploy.local.site import site
from deploy.local.stack import Stack
from schemas.topics import LISTENS
from shared.messaging.group_members import member_name, remove_members, static_members
from shared.messaging.kafka import sasl
from shared.service import Service
from shared.settings import Timing
from tests.chaos.source import Source, a_batch
from tests.handlers import handle_the_rest
from tests.integration.kernel import counting
from tests.integration.kernel.conftest import NODE_EVENTS, new_key
from tests.waiting import until

pytestmark = pytest.mark.stack

GROUP, PROCESS, OTHER_PROCESS = "tracker", "tracker-1", "tracker-10"
OLD_TOPIC, TOPIC_OF_THE_OTHER = "run.metrics", "cost.commands"
LONG = timedelta(minutes=10)
"""Session of each member, and how long a rebalance waits for one: no test waits for either."""
TIMING = Timing(session_timeout=LONG, rebalance_timeout=LONG, heartbeat=timedelta(seconds=0.3))


@pytest.fixture
async def admin(stack: Stack) -> AsyncIterator[AIOKafkaAdminClient]:
    """With a group that has no members, before and after the test."""
    async with administrator(site(stack.state)) as admin:
        await until(lambda: has_coordinator(admin), "a new broker to coordinate groups")
        await remove_members(admin, GROUP, await static_members(admin, GROUP))
        yield admin
        await remove_members(admin, GROUP, await static_members(admin, GROUP))


async def has_coordinator(admin: AIOKafkaAdminClient) -> bool:
    try:
        await static_members(admin, GROUP)
    except KafkaError:
        return False
    return True


@pytest.fixture
def settings(tracker_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> counting.Settings:
    for name, value in tracker_env.items():
        monkeypatch.setenv(name, value)
    return counting.Settings(instance=1, timing=TIMING)


def member(stack: Stack, name: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        TOPIC_OF_THE_OTHER,
        bootstrap_servers=stack.kafka_bootstrap,
        group_id=GROUP,
        group_instance_id=name,
        session_timeout_ms=int(LONG.total_seconds() * 1000),
        rebalance_timeout_ms=int(LONG.total_seconds() * 1000),
        heartbeat_interval_ms=300,
        enable_auto_commit=False,
        **sasl(GROUP, stack.kafka_password(GROUP)),
    )


async def test_no_topic_waits_for_the_sessions_of_former_members(
    admin, settings, stack, writer, db, monkeypatch
):
    new, old = new_key(), new_key()
    async with Source(stack, "runner", OLD_TOPIC) as runner, member(stack, OTHER_PROCESS):
        others = await static_members(admin, GROUP)
        assert list(others) == [OTHER_PROCESS]
        async with member(stack, PROCESS):
            """The release before members' names had a digest."""
        await run_release_before(settings, monkeypatch)
        async with counting.build(settings).running():
            await writer.good(new)
            await runner.all([a_batch(old)] * 3)
            await until(lambda: has_effect(db, new), "a record of the topic that is new")
            await until(lambda: has_effect(db, old), "a record of the others")
            members = await static_members(admin, GROUP)
    now = member_name(PROCESS, [topic.name for topic in LISTENS[GROUP]])
    assert members.keys() == {OTHER_PROCESS, now}
    assert members[OTHER_PROCESS] == others[OTHER_PROCESS], "it was removed, and joined again"


async def run_release_before(settings: counting.Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        heard = tuple(each for each in LISTENS[GROUP] if each.name != NODE_EVENTS)
        before.setitem(LISTENS, GROUP, heard)
        service = handle_the_rest(Service(GROUP, settings))
        async with service.running():
            await until(lambda: is_member(service), "the release before to be in the group")


async def is_member(service: Service) -> bool:
    return service.probe.ready


async def has_effect(db, key: str) -> bool:
    return await db.fetchval("SELECT count(*) > 0 FROM effect WHERE aggregate_id = $1", key)


async def test_what_is_no_member_need_not_be_removed(admin):
    assert await static_members(admin, "no-such-group") == {}
    await remove_members(admin, GROUP, [PROCESS])
