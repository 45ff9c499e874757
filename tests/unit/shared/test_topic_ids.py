"""A position that is of a topic which is no more is told from one of the topic that is there."""

import asyncio

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaTimeoutError
from aiokafka.structs import OffsetAndMetadata

from shared.messaging import topic_ids
from shared.messaging.topic_ids import TopicIds
from shared.record import Record

FIRST, SECOND = TopicPartition("job.commands", 0), TopicPartition("job.commands", 1)
OLD, NEW = {"job.commands": "old"}, {"job.commands": "new"}


class Consumer:
    def __init__(self, *assigned: TopicPartition) -> None:
        self.assigned = set(assigned)
        self.done: list[object] = []
        self.trouble: Exception | None = None
        self.deleted: set[TopicPartition] = set()

    def assignment(self) -> set[TopicPartition]:
        return self.assigned

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        if self.deleted & set(partitions):
            await asyncio.Event().wait()
        return dict.fromkeys(partitions, 3)

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        if self.trouble:
            raise self.trouble
        self.done.append(offsets)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.done.append((partition, offset))


@pytest.fixture
def ids() -> TopicIds:
    ids = TopicIds()
    ids.learn(OLD, (FIRST, SECOND), {})
    return ids


def record(partition: int, offset: int) -> Record:
    return Record("job.commands", partition, offset, None, (), None)


def test_commits_name_the_topic(ids: TopicIds):
    offsets = ids.offsets([record(0, 4), record(1, 7), record(0, 5)])
    assert offsets == {FIRST: OffsetAndMetadata(6, "old"), SECOND: OffsetAndMetadata(8, "old")}


@pytest.mark.parametrize(
    "committed",
    [
        {},
        {FIRST: OffsetAndMetadata(-1, "")},
        {FIRST: OffsetAndMetadata(5, "")},
        {FIRST: OffsetAndMetadata(5, "old")},
    ],
    ids=["nothing", "no offset", "by a tool", "ours"],
)
def test_the_same_topic_is_read_on(ids: TopicIds, committed):
    ids.learn(OLD, (FIRST,), committed)
    assert ids.strange == set()
    assert not ids.is_of_another(FIRST, committed)


def test_a_topic_that_was_made_again_is_found_by_what_was_known(ids: TopicIds):
    ids.learn({}, (), {})  # it is gone at this look
    ids.learn(NEW, (FIRST, SECOND), {})
    assert ids.strange == {FIRST, SECOND}


def test_and_by_a_process_that_knew_nothing_by_what_was_committed():
    ids, committed = TopicIds(), {FIRST: OffsetAndMetadata(5, "old"), SECOND: OffsetAndMetadata(5, "new")}
    ids.learn(NEW, (FIRST, SECOND), committed)
    assert ids.strange == {FIRST}
    assert [ids.is_of_another(each, committed) for each in (FIRST, SECOND)] == [True, False]


async def test_its_partitions_are_read_again_and_nothing_is_committed_before(ids: TopicIds):
    ids.learn(NEW, (FIRST, SECOND), {})
    assert ids.offsets([record(0, 4)]) == {}
    consumer = Consumer(FIRST)
    await ids.read_from_start(consumer)
    assert consumer.done == [{FIRST: OffsetAndMetadata(3, "new")}, (FIRST, 3)]
    assert ids.strange == set()
    assert ids.offsets([record(0, 3)]) == {FIRST: OffsetAndMetadata(4, "new")}


async def test_it_is_tried_again_where_the_commit_fails(ids: TopicIds):
    ids.learn(NEW, (FIRST,), {})
    consumer = Consumer(FIRST)
    consumer.trouble = RuntimeError("the group is rebalancing")
    with pytest.raises(RuntimeError):
        await ids.read_from_start(consumer)
    assert ids.strange == {FIRST}


async def test_a_topic_that_is_missing_holds_up_no_other(ids: TopicIds):
    other = TopicPartition("eval.commands", 0)
    ids.learn({other.topic: "one"}, (), {})
    ids.learn(NEW | {other.topic: "two"}, (FIRST, other), {})
    ids.learn({other.topic: "two"}, (), {})
    consumer = Consumer(FIRST, other)
    consumer.deleted = {FIRST}
    await ids.read_from_start(consumer)
    assert consumer.done == [{other: OffsetAndMetadata(3, "two")}, (other, 3)]
    assert ids.strange == {FIRST}


async def test_a_topic_that_is_deleted_just_now_is_not_asked_without_end(ids: TopicIds, monkeypatch):
    monkeypatch.setattr(topic_ids, "FIRST_OFFSETS_SECONDS", 0.01)
    ids.learn(NEW, (FIRST,), {})
    consumer = Consumer(FIRST)
    consumer.deleted = {FIRST}
    with pytest.raises(KafkaTimeoutError, match=r"no first offsets of job\.commands within 0\.01 s"):
        await ids.read_from_start(consumer)
    assert (consumer.done, ids.strange) == ([], {FIRST})
