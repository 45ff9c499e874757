"""A release that listens to one topic more than the one before it, whose process had the same name."""

import pytest

from schemas.topics import LISTENS
from shared.service import Service
from tests.handlers import handle_the_rest
from tests.integration.kernel import counting
from tests.integration.kernel.conftest import NODE_EVENTS, new_key, until

pytestmark = pytest.mark.stack


async def test_its_topic_is_read_although_kafka_knows_the_process(tracker_env, monkeypatch, writer, db):
    for name, value in tracker_env.items():
        monkeypatch.setenv(name, value)
    with monkeypatch.context() as before:
        before.setitem(
            LISTENS, "tracker", tuple(each for each in LISTENS["tracker"] if each.name != NODE_EVENTS)
        )
        service = handle_the_rest(Service("tracker", counting.Settings()))
        async with service.running():
            await until(lambda: is_member(service), "the release before to be in the group")
    key = new_key()
    async with counting.build().running():
        await writer.good(key)
        await until(lambda: has_effect(db, key), "a record of the topic that is new", patience_seconds=60)


async def is_member(service: Service) -> bool:
    return service.probe.ready


async def has_effect(db, key: str) -> bool:
    return await db.fetchval("SELECT count(*) > 0 FROM effect WHERE aggregate_id = $1", key)
