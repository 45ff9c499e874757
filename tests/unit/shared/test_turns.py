"""What the client takes from a partition is handed over, and every partition has its turn."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.consumer.consumer import AIOKafkaConsumer
from aiokafka.consumer.fetcher import (
    READ_COMMITTED,
    Fetcher,
    FetchError,
    FetchResult,
    PartitionRecords,
)
from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from aiokafka.structs import TopicPartition
from pydantic import SecretStr

from shared.messaging.batches import Batches
from shared.messaging.missing_offsets import MissingOffsets
from shared.messaging.reader import _by_time
from shared.messaging.topic_ids import TopicIds
from shared.messaging.turns import DAY_SECONDS, PAUSE_SECONDS, TenantLimit, Turns
from shared.record import Record
from shared.service import Service
from shared.settings import ServiceSettings
from tests.unit.shared.record_batches import a_batch

GOOD, BAD, OTHER = (TopicPartition(f"tenant.{name}.commands", 0) for name in ("good", "bad", "other"))
OURS = TopicPartition("job.events", 0)


class Position:
    """aiokafka's, of one partition."""

    def __init__(self) -> None:
        self.position = 0
        self.paused = False

    def consumed_to(self, position: int) -> None:
        self.position = position


class Log:
    """A consumer of aiokafka with its own fetcher, whose responses are these bytes; no broker is asked.

    `broken` are partitions whose records raise an error of the decoder's own.
    """

    active = True
    reassignment_in_progress = False

    def __init__(self, batches: dict[TopicPartition, bytes], *, broken: tuple[TopicPartition, ...] = ()):
        self.positions = {partition: Position() for partition in batches}
        self._batches = batches
        self._broken = broken
        self._fetcher = Fetcher.__new__(Fetcher)
        self._fetcher._subscriptions = self
        self._fetcher._closed = False
        self._fetcher._wait_consume_future = None
        self._fetcher._notify = lambda _: None
        self._fetcher._create_fetch_waiter = asyncio.get_running_loop().create_future
        self._fetcher._records = {}
        self.refetch()

    def refetch(self) -> None:
        for partition, data in self._batches.items():
            position = self.positions[partition].position
            records: Any = PartitionRecords(
                partition, Batches(data), [], position, None, None, True, READ_COMMITTED
            )
            if partition in self._broken:
                records._records_iterator = self._break()
            self._fetcher._records.setdefault(
                partition, FetchResult(partition, assignment=self, backoff=0, partition_records=records)
            )

    def _break(self):
        raise MemoryError("a decoder's own")
        yield

    def state_value(self, partition: TopicPartition) -> Position:
        return self.positions[partition]

    def is_assigned(self, partition: TopicPartition) -> bool:
        return partition in self.positions

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self.positions)

    def paused(self) -> set[TopicPartition]:
        return {partition for partition, position in self.positions.items() if position.paused}

    def pause(self, partition: TopicPartition) -> None:
        self.positions[partition].paused = True

    def resume(self, partition: TopicPartition) -> None:
        self.positions[partition].paused = False

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int, max_records: int) -> Any:
        self.refetch()
        return await self._fetcher.fetched_records(partitions, timeout_ms / 1000, max_records)


def test_the_stand_in_asks_as_the_client_does():
    assert {"timeout_ms", "max_records"} <= set(AIOKafkaConsumer.getmany.__annotations__) | set(
        AIOKafkaConsumer.getmany.__kwdefaults__
    )


def test_records_of_a_partition_keep_their_order_whatever_time_they_have():
    times = [("a", 5), ("a", -1), ("b", 3), ("a", 7), ("b", 4)]
    records = [Record(topic, 0, offset, None, (), None, time) for offset, (topic, time) in enumerate(times)]
    assert [record.offset for record in _by_time(records)] == [2, 4, 0, 1, 3]


def values(records: list[Any]) -> list[tuple[str, int]]:
    return [(record.topic, record.offset) for record in records]


async def take_all(log: Log, *, max_records: int) -> list[Any]:
    turns, taken = Turns(log), []
    while more := await turns.take(wait_ms=1, max_records=max_records):
        taken += more
    return taken


@pytest.mark.parametrize("max_records", [1, 2, 7, 100])
@pytest.mark.parametrize("codec", [0, 3])
async def test_a_bad_batch_beside_good_ones_costs_no_record(max_records: int, codec: int):
    bad = bytearray(a_batch([{}] * 3, codec=codec))
    bad[-1] ^= 1  # fetched again once, then unreadable
    log = Log({GOOD: a_batch([{}] * 5), BAD: bytes(bad), OTHER: a_batch([{}] * 5)})
    taken = values(await take_all(log, max_records=max_records))
    expected = {GOOD: 5, BAD: 3, OTHER: 5}
    for partition, number in expected.items():
        assert [offset for topic, offset in taken if topic == partition.topic] == list(range(number))
        assert log.positions[partition].position == number


async def test_an_error_of_the_client_moves_no_position_that_was_not_handed_over():
    log = Log({GOOD: a_batch([{}] * 5), BAD: a_batch([{}])}, broken=(BAD,))
    turns, taken = Turns(log), []

    async def take_on() -> None:
        while True:
            taken.extend(await turns.take(wait_ms=0, max_records=1))

    with pytest.raises(MemoryError):
        await take_on()
    assert len(taken) == log.positions[GOOD].position
    assert log.positions[BAD].position == 0


async def test_a_partition_with_many_records_waits_for_those_with_few():
    log = Log({BAD: a_batch([{}] * 10_000), GOOD: a_batch([{}] * 3), OTHER: a_batch([{}] * 3)})
    turns = Turns(log)
    first = [values(await turns.take(wait_ms=0, max_records=100)) for _ in range(3)]
    assert {topic for turn in first for topic, _ in turn} == {GOOD.topic, BAD.topic, OTHER.topic}
    assert [len(turn) for turn in first] == [100, 100, 100]


def without_offsets(log: Log, *errors: Exception) -> Log:
    """As after a response that refuses the offsets of these partitions."""
    for error in errors:
        (offsets,) = error.args
        (partition,) = offsets if isinstance(offsets, dict) else [offsets]
        log._fetcher._records[partition] = FetchError(error=error, backoff=0)
    return log


async def test_partitions_whose_offset_is_missing_are_noted_in_one_turn():
    log = Log({GOOD: b"", BAD: b"", OTHER: b""})
    errors = (
        OffsetOutOfRangeError({GOOD: 3}),
        OffsetOutOfRangeError({BAD: 4}),
        NoOffsetForPartitionError(OTHER),
    )
    without_offsets(log, *errors)
    missing = MissingOffsets(TopicIds(), group="any")
    assert await Turns(log, missing=missing).take(wait_ms=0, max_records=100) == []
    assert missing.partitions == {GOOD: 3, BAD: 4, OTHER: None}


async def test_the_other_partitions_are_read_meanwhile():
    log = without_offsets(Log({GOOD: a_batch([{}] * 3), BAD: b""}), OffsetOutOfRangeError({BAD: 4}))
    missing = MissingOffsets(TopicIds(), group="any")
    turns, taken = Turns(log, missing=missing), []
    for _ in range(2):
        taken += values(await turns.take(wait_ms=0, max_records=100))
    assert taken == [(GOOD.topic, offset) for offset in range(3)]
    assert missing.partitions == {BAD: 4}


async def test_a_reader_that_keeps_its_offsets_is_refused_one_that_the_log_does_not_have():
    log = without_offsets(Log({GOOD: a_batch([{}])}), OffsetOutOfRangeError({GOOD: 4}))
    with pytest.raises(OffsetOutOfRangeError):
        await Turns(log).take(wait_ms=0, max_records=1)


async def test_a_partition_that_is_lost_between_turns_is_not_asked_for():
    log = Log({GOOD: a_batch([{}] * 5), BAD: a_batch([{}] * 5)})
    turns = Turns(log)
    await turns.take(wait_ms=0, max_records=1)
    lost = next(iter(turns._left))
    del log.positions[lost]
    log._batches.pop(lost)
    log._fetcher._records.pop(lost, None)
    taken = values(await turns.take(wait_ms=0, max_records=100))
    assert lost.topic not in {topic for topic, _ in taken}


class Asked:
    """A consumer that answers in order what is written here, and notes what it was asked for."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers = [*answers]
        self.questions: list[tuple[Any, ...]] = []

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset({GOOD, BAD})

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int, max_records: int) -> Any:
        self.questions.append((partitions, timeout_ms, max_records))
        return {None: self.answers.pop(0) if self.answers else []}


def of(partition: TopicPartition) -> list[Any]:
    return [Record(partition.topic, 0, 0, None, (), None)]


@pytest.mark.parametrize(
    ("max_records", "answers", "questions"),
    [
        (3, [], [((), 50, 1)]),
        (1, [of(GOOD)], [((), 50, 1)]),
        (2, [of(GOOD), of(GOOD)], [((), 50, 1), ((GOOD,), 0, 1)]),
        (
            3,
            [of(GOOD), of(GOOD), of(BAD)],
            [((), 50, 1), ((GOOD,), 0, 2), ((BAD,), 0, 1)],
        ),
        (
            4,
            [of(GOOD), of(GOOD)],
            [((), 50, 1), ((GOOD,), 0, 3), ((BAD,), 0, 1), ((), 0, 1)],
        ),
    ],
    ids=["nothing", "one", "two of one", "one of another", "no more"],
)
async def test_only_where_nothing_is_there_a_turn_waits(max_records, answers, questions):
    consumer = Asked(*answers)
    taken = await Turns(consumer).take(wait_ms=50, max_records=max_records)
    assert (len(taken), consumer.questions) == (len(answers), questions)


async def test_a_turn_that_is_still_due_comes_first_and_the_next_round_waits():
    consumer = Asked(of(GOOD))
    turns = Turns(consumer)
    await turns.take(wait_ms=50, max_records=1)
    await turns.take(wait_ms=50, max_records=1)
    assert consumer.questions[1:] == [((BAD,), 0, 1), ((), 50, 1)]


class Clock:
    """Seconds, which pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class TestATenantThatSendsMoreThanIsReadInADay:
    """Of 8,640 a day one is read in ten seconds."""

    A_DAY = 8_640

    @staticmethod
    async def offsets(turns: Turns, partition: TopicPartition) -> list[int]:
        taken = values(await turns.take(wait_ms=1, max_records=100))
        return [offset for topic, offset in taken if topic == partition.topic]

    async def test_is_read_no_further_while_others_are(self):
        log = Log({each: a_batch([{}] * 10_000) for each in (BAD, GOOD, OURS)})
        turns = Turns(log, limit=TenantLimit(self.A_DAY, clock=Clock()))
        read = {BAD: 0, OURS: 0}
        while log.positions[OURS].position < 10_000:
            taken = values(await turns.take(wait_ms=1, max_records=100))
            assert taken, "a topic of ours has more"
            for each in read:
                read[each] += len([topic for topic, _ in taken if topic == each.topic])
        assert self.A_DAY <= read[BAD] < self.A_DAY + 100
        assert read[OURS] == 10_000

    async def test_has_one_limit_for_all_partitions_of_its_topic(self):
        both = [TopicPartition(BAD.topic, number) for number in range(2)]
        log = Log({each: a_batch([{}] * 10_000) for each in both})
        limit = TenantLimit(self.A_DAY, clock=Clock())
        turns, taken = Turns(log, limit=limit), 0
        while more := await turns.take(wait_ms=1, max_records=100):
            taken += len(more)
        assert self.A_DAY <= taken < self.A_DAY + 100
        assert limit.paused == set(both)

    async def test_is_read_on_without_a_gap_as_time_passes(self):
        log, clock = Log({BAD: a_batch([{}] * 10_000)}), Clock()
        turns = Turns(log, limit=TenantLimit(self.A_DAY, clock=clock))
        taken: list[int] = []
        while more := await self.offsets(turns, BAD):
            taken += more
        clock.seconds += 100 * DAY_SECONDS / self.A_DAY
        taken += await self.offsets(turns, BAD)
        assert taken == list(range(len(taken)))
        assert len(taken) >= self.A_DAY + 100

    async def test_rests_for_a_while_before_it_is_read_on(self):
        log, clock = Log({BAD: a_batch([{}] * 10_000)}), Clock()
        limit = TenantLimit(self.A_DAY, clock=clock)
        turns = Turns(log, limit=limit)
        while await self.offsets(turns, BAD):
            pass
        assert limit.paused == log.paused() == {BAD}
        clock.seconds += (log.positions[BAD].position - self.A_DAY) * DAY_SECONDS / self.A_DAY
        clock.seconds += PAUSE_SECONDS - 1
        assert await self.offsets(turns, BAD) == []
        clock.seconds += 1
        assert await self.offsets(turns, BAD) != []
        assert limit.paused == set()

    async def test_is_paused_again_by_who_gets_its_partition_back(self):
        log = Log({BAD: a_batch([{}] * 10_000)})
        turns = Turns(log, limit=TenantLimit(self.A_DAY, clock=Clock()))
        while await self.offsets(turns, BAD):
            pass
        log.resume(BAD)  # as the client's state of a new assignment
        assert await self.offsets(turns, BAD) == []
        assert log.paused() == {BAD}

    @pytest.mark.parametrize(("read", "paused"), [(A_DAY - 1, set()), (A_DAY, {BAD})])
    async def test_is_paused_with_its_last_record_and_nobody_elses_pause_is_its(self, read, paused):
        log = Log({BAD: b"", GOOD: b""})
        limit = TenantLimit(self.A_DAY, clock=Clock())
        log.pause(GOOD)
        limit.count(of(BAD) * read)
        limit.apply(log)
        assert limit.paused == paused

    async def test_saves_what_it_does_not_use_for_a_day_at_most(self):
        log, clock = Log({BAD: a_batch([{}] * 10_000)}), Clock()
        turns = Turns(log, limit=TenantLimit(self.A_DAY, clock=clock))
        await self.offsets(turns, BAD)
        clock.seconds += 100 * DAY_SECONDS
        taken = 0
        while more := await self.offsets(turns, BAD):
            taken += len(more)
        assert self.A_DAY <= taken < self.A_DAY + 100


async def test_a_service_reads_a_tenants_topic_as_far_as_its_setting_says(monkeypatch: pytest.MonkeyPatch):
    settings = ServiceSettings(
        kafka_bootstrap="127.0.0.1:1",
        kafka_username="gateway",
        kafka_password=SecretStr("secret"),
        postgres_dsn=SecretStr("postgresql://"),
        http_port=1,
        tenant_records_per_day=12_345,
    )
    reading = Service("gateway", settings)
    log = Log({BAD: a_batch([{}])})
    reading._subscriber = SimpleNamespace(consumer=log)

    async def stop(*_: object) -> None:
        reading._stopping = True

    monkeypatch.setattr(reading, "_consume_all", stop)
    await reading._consume()
    assert reading._tenants_limit._left[BAD.topic][0] == 12_345 - 1
