"""Liveness is progress: a partition with records to read that does not move, by a clock that is never set."""

from datetime import UTC, datetime, timedelta

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from pydantic import SecretStr

from schemas.topics import JOB_EVENTS, NODE_EVENTS, PARKED_COMMANDS
from shared.messaging.lag import (
    LONGEST_GAP,
    STALLED_AFTER_SECONDS,
    UNSEEN_SECONDS,
    Contact,
    Lag,
    Progress,
    differences,
)
from shared.settings import ServiceSettings

PARTITION, OTHER = TopicPartition("job.events", 0), TopicPartition("job.events", 1)
LATE = STALLED_AFTER_SECONDS + 5


@pytest.fixture
def progress() -> Progress:
    return Progress()


def look(progress, *, partition=PARTITION, position: int, end: int, until: float, begin: float = 0.0) -> bool:
    """Every five seconds; what the last look says."""
    stalled = False
    while begin <= until:
        stalled = progress.is_stalled(partition, position=position, end=end, now=begin)
        begin += 5
    return stalled


@pytest.mark.parametrize(("seconds", "expected"), [(0, False), (STALLED_AFTER_SECONDS, False), (LATE, True)])
def test_records_that_are_not_read_for_long_are_a_standstill(progress, seconds, expected):
    assert look(progress, position=5, end=6, until=seconds) is expected


def test_a_slow_reader_that_moves_is_alive_however_far_it_is_behind(progress):
    stalls = [
        look(progress, position=step, end=10**6, begin=step * 50.0, until=step * 50 + 45)
        for step in range(100)
    ]
    assert not any(stalls)


def test_who_has_read_everything_is_alive_however_long_nothing_comes(progress):
    assert not look(progress, position=6, end=6, until=100 * 3600.0)
    assert not progress.is_stalled(PARTITION, position=6, end=7, now=100 * 3600.0 + 1)


def test_it_is_over_with_the_first_record_that_is_read(progress):
    assert look(progress, position=5, end=9, until=LATE)
    assert not progress.is_stalled(PARTITION, position=6, end=9, now=LATE)


def test_one_partition_does_not_hide_another(progress):
    for partition in (PARTITION, OTHER):
        look(progress, partition=partition, position=5, end=9, until=STALLED_AFTER_SECONDS)
    assert not progress.is_stalled(PARTITION, position=9, end=9, now=LATE)
    assert progress.is_stalled(OTHER, position=5, end=9, now=LATE)


def test_while_nobody_looked_nothing_stood_still(progress):
    """Kafka was away, or the process was stopped: what waits now is given its time."""
    look(progress, position=5, end=9, until=20)
    back = 20 + UNSEEN_SECONDS + 1
    assert not progress.is_stalled(PARTITION, position=5, end=9, now=back)
    assert not look(progress, position=5, end=9, begin=back, until=back + STALLED_AFTER_SECONDS)
    assert look(
        progress,
        position=5,
        end=9,
        begin=back + STALLED_AFTER_SECONDS,
        until=back + STALLED_AFTER_SECONDS + 5,
    )


class Metadata:
    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return {"job.events": {0, 1, 2}, "node.events": {0}}.get(topic)


def test_topics_that_are_missing_or_of_another_width_are_named():
    lines = list(differences([JOB_EVENTS, NODE_EVENTS, PARKED_COMMANDS], Metadata()))
    assert [each.split(";")[0] for each in lines] == [
        "topic node.events: found 1 partitions, expected 3",
        "topic parked.commands: it is missing",
    ]


class TestContact:
    NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)

    def answered(self, *seconds: float) -> Contact:
        contact = Contact()
        for each in seconds:
            contact.answered(self.at(each))
        return contact

    def at(self, seconds: float) -> datetime:
        return self.NOON + timedelta(seconds=seconds)

    def test_lasts_since_the_first_of_answers_without_a_gap(self):
        assert self.answered(0, 5, 18).since(self.at(20)) == self.at(0)

    def test_begins_again_after_an_outage(self):
        gap = LONGEST_GAP.total_seconds() + 1
        assert self.answered(0, gap).since(self.at(gap)) == self.at(gap)

    def test_is_none_before_the_first_answer_and_during_an_outage(self):
        assert self.answered().since(self.at(7)) == self.at(7)
        assert self.answered(0).since(self.at(16)) == self.at(16)


class TestAClientThatCannotStart:
    """It kept what it had opened: a soak found its complaint in a log."""

    class Unreachable:
        def __init__(self, **_: object) -> None:
            self.is_closed = False
            clients.append(self)

        async def start(self) -> None:
            raise KafkaConnectionError("no broker")

        async def stop(self) -> None:
            self.is_closed = True

    async def test_is_closed(self):
        settings = ServiceSettings(
            kafka_bootstrap="127.0.0.1:1",
            kafka_username="tracker",
            kafka_password=SecretStr("secret"),
            postgres_dsn=SecretStr("postgresql://"),
            http_port=1,
        )
        with pytest.raises(KafkaConnectionError):
            await Lag(settings, group="tracker")._started(self.Unreachable, self.Unreachable.stop)
        assert [client.is_closed for client in clients] == [True]


clients: list[TestAClientThatCannotStart.Unreachable] = []
