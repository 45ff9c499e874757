"""A service reads on at the first record where Kafka does not have its offset, and says what is gone."""

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, NoOffsetForPartitionError, OffsetOutOfRangeError
from aiokafka.structs import OffsetAndMetadata
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from shared.messaging.missing_offsets import LOG_CUT, RECORDS_GONE, MissingOffsets
from shared.messaging.topic_ids import TopicIds

FIRST, SECOND = TopicPartition("run.metrics", 0), TopicPartition("run.metrics", 1)
START = 7


class Consumer:
    """Its logs begin at START."""

    def __init__(self, *assigned: TopicPartition) -> None:
        self.assigned = frozenset(assigned)
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.error: Exception | None = None

    def assignment(self) -> frozenset[TopicPartition]:
        return self.assigned

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, START)

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        if self.error:
            raise self.error
        self.committed |= offsets

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.positions[partition] = offset


@pytest.fixture
def ids() -> TopicIds:
    ids = TopicIds()
    ids.learn({FIRST.topic: "id"}, (), {})
    return ids


@pytest.fixture
def missing(ids: TopicIds, request: pytest.FixtureRequest) -> MissingOffsets:
    return MissingOffsets(ids, group=request.node.name)


def number_lost(group: str) -> float | None:
    labels = {"service": group, "topic": FIRST.topic}
    return REGISTRY.get_sample_value("consumer_records_lost_total", labels)


async def read_from_start(missing: MissingOffsets, consumer: Consumer) -> list[tuple[str, int, int]]:
    """What is logged, with the offsets."""
    with capture_logs() as logs:
        await missing.read_from_start(consumer)
    assert {entry["log_level"] for entry in logs} <= {"error"}
    return [(entry["event"], entry["read_up_to"], entry["log_start"]) for entry in logs]


async def test_what_was_deleted_unread_is_logged_counted_and_committed(missing: MissingOffsets, request):
    consumer = Consumer(FIRST, SECOND)
    missing.add(OffsetOutOfRangeError({FIRST: 3}))
    missing.add(OffsetOutOfRangeError({SECOND: 6}))
    assert await read_from_start(missing, consumer) == [(RECORDS_GONE, 3, START), (RECORDS_GONE, 6, START)]
    assert number_lost(request.node.name) == 4 + 1
    assert consumer.committed == dict.fromkeys((FIRST, SECOND), OffsetAndMetadata(START, "id"))
    assert consumer.positions == dict.fromkeys((FIRST, SECOND), START)
    assert missing.partitions == {}


async def test_a_log_that_is_shorter_than_what_was_read_is_read_again(missing: MissingOffsets, request):
    consumer = Consumer(FIRST)
    missing.add(OffsetOutOfRangeError({FIRST: 50}))
    assert await read_from_start(missing, consumer) == [(LOG_CUT, 50, START)]
    assert number_lost(request.node.name) is None
    assert (consumer.committed, consumer.positions) == ({}, {FIRST: START})


async def test_a_group_without_an_offset_begins_at_the_first_record(missing: MissingOffsets, request):
    consumer = Consumer(FIRST)
    missing.add(NoOffsetForPartitionError(FIRST))
    assert await read_from_start(missing, consumer) == []
    assert number_lost(request.node.name) is None
    assert (consumer.committed, consumer.positions) == ({}, {FIRST: START})


async def test_what_another_process_has_taken_over_is_left_to_it(missing: MissingOffsets):
    consumer = Consumer(SECOND)
    missing.add(OffsetOutOfRangeError({FIRST: 3}))
    assert await read_from_start(missing, consumer) == []
    assert (consumer.positions, missing.partitions) == ({}, {})


async def test_a_topic_that_was_made_again_has_lost_nothing_of_ours(missing: MissingOffsets, ids: TopicIds):
    ids.learn({FIRST.topic: "new"}, (FIRST,), {})
    missing.add(OffsetOutOfRangeError({FIRST: 3}))
    assert await read_from_start(missing, Consumer(FIRST)) == []
    assert ids.strange == {FIRST}


async def test_it_is_tried_again_where_the_commit_fails(missing: MissingOffsets, request):
    consumer = Consumer(FIRST)
    consumer.error = CommitFailedError("the group is rebalancing")
    missing.add(OffsetOutOfRangeError({FIRST: 3}))
    with pytest.raises(CommitFailedError):
        await missing.read_from_start(consumer)
    assert consumer.positions == {}
    consumer.error = None
    assert await read_from_start(missing, consumer) == [(RECORDS_GONE, 3, START)]
    assert number_lost(request.node.name) == 4
