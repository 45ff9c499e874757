"""Liveness is progress: a partition with records to read that does not move, by a clock that is never set."""

import pytest
from aiokafka import TopicPartition

from shared.messaging.lag import STALLED_AFTER_SECONDS, Progress

PARTITION, OTHER = TopicPartition("job.events", 0), TopicPartition("job.events", 1)


@pytest.fixture
def progress() -> Progress:
    return Progress()


def test_records_that_are_not_read_for_long_are_a_standstill(progress):
    found = [
        progress.is_stalled(PARTITION, position=5, end=6, now=now)
        for now in (0.0, STALLED_AFTER_SECONDS, STALLED_AFTER_SECONDS + 1)
    ]
    assert found == [False, False, True]


def test_a_slow_reader_that_moves_is_alive_however_far_it_is_behind(progress):
    found = [
        progress.is_stalled(PARTITION, position=step, end=10**6, now=step * STALLED_AFTER_SECONDS)
        for step in range(100)
    ]
    assert not any(found)


def test_who_has_read_everything_is_alive_however_long_nothing_comes(progress):
    assert not any(
        progress.is_stalled(PARTITION, position=6, end=6, now=hour * 3600.0) for hour in range(100)
    )
    assert not progress.is_stalled(PARTITION, position=6, end=7, now=99 * 3600.0 + 1)


def test_it_is_over_with_the_first_record_that_is_read(progress):
    progress.is_stalled(PARTITION, position=5, end=9, now=0.0)
    late = STALLED_AFTER_SECONDS + 1
    assert progress.is_stalled(PARTITION, position=5, end=9, now=late)
    assert not progress.is_stalled(PARTITION, position=6, end=9, now=late)


def test_one_partition_does_not_hide_another(progress):
    late = STALLED_AFTER_SECONDS + 1
    for partition in (PARTITION, OTHER):
        progress.is_stalled(partition, position=5, end=9, now=0.0)
    assert not progress.is_stalled(PARTITION, position=9, end=9, now=late)
    assert progress.is_stalled(OTHER, position=5, end=9, now=late)
