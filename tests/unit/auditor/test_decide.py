"""Where the auditor reads on, and what it says."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from schemas.audit import NOTHING_BEFORE, PartitionRead
from schemas.topics import TOPICS, is_audited
from services.auditor.decide import FULL_EVERY, Last, is_full_due, plan, state
from shared.audit import heads
from shared.audit.chain import Chain, begin
from shared.partition import Partition

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)
TOPIC_PARTITION = Partition("job.events", 0)


def chain(topic_partition: Partition = TOPIC_PARTITION, *, start: int = 0, next_offset: int = 10) -> Chain:
    return Chain(topic_partition, start, next_offset, hashlib.sha256(repr(topic_partition).encode()).digest())


def test_all_topics_are_audited_but_what_may_be_lost():
    assert {topic.name for topic in TOPICS if not is_audited(topic.name)} == {"run.metrics"}
    assert is_audited("tenant.acme.commands")
    assert not [name for name in ("__consumer_offsets", "tenant.acme.events", "other") if is_audited(name)]


def test_a_new_partition_begins_where_it_begins():
    planned = plan({}, {TOPIC_PARTITION: range(4, 9)})
    assert planned.read == planned.began == (begin(TOPIC_PARTITION, at=4),)
    assert (planned.missed, planned.cut) == ((), ())


@pytest.mark.parametrize("there", [range(10), range(10, 10), range(3, 50)])
def test_a_known_one_continues_where_it_was(there: range):
    planned = plan({TOPIC_PARTITION: chain()}, {TOPIC_PARTITION: there})
    assert (planned.read, planned.began, planned.missed, planned.cut) == ((chain(),), (), (), ())


def test_records_gone_before_they_were_read_begin_a_new_chain():
    planned = plan({TOPIC_PARTITION: chain()}, {TOPIC_PARTITION: range(11, 20)})
    assert planned.read == planned.began == (begin(TOPIC_PARTITION, at=11),)
    assert planned.missed == (chain(),)


def test_a_log_that_ends_before_what_was_read_is_left_alone():
    planned = plan({TOPIC_PARTITION: chain()}, {TOPIC_PARTITION: range(9)})
    assert (planned.read, planned.began, planned.cut) == ((), (), (chain(),))


def test_a_topic_that_is_gone_is_not_read_and_not_forgotten():
    assert plan({TOPIC_PARTITION: chain()}, {}).read == ()


def test_a_full_statement_names_every_chain_and_the_statement_before():
    other = chain(Partition("dataset.events", 2), start=3)
    first = state(Last(), [chain(), other], None, now=NOW)
    assert (first.number, first.previous_sha256, first.signed_at) == (1, NOTHING_BEFORE, NOW)
    assert [(read.topic, read.partition) for read in first.partitions] == [
        other.topic_partition,
        TOPIC_PARTITION,
    ]
    assert (first.is_full, heads.heads_of(first)) == (
        True,
        {other.topic_partition: other, TOPIC_PARTITION: chain()},
    )
    second = state(Last(1, "ab" * 32), [], None, now=NOW)
    assert (second.number, second.previous_sha256) == (2, "ab" * 32)


def test_a_statement_says_of_a_chain_how_far_it_was_read_and_from_when_its_records_are():
    moved = replace(chain(start=2), oldest_ms=900, newest_ms=1000)
    assert state(Last(), [moved], None, now=NOW).partitions == (
        PartitionRead(
            topic="job.events",
            partition=0,
            start_offset=2,
            next_offset=10,
            link=moved.link.hex(),
            oldest_ms=900,
            newest_ms=1000,
        ),
    )


def test_the_others_name_what_moved_and_are_signed_over_the_rest_too():
    other, last = chain(Partition("dataset.events", 2)), Last(1, "ab" * 32)
    quiet = {other.topic_partition: other}
    second = state(last, [chain(), other], {TOPIC_PARTITION}, now=NOW)
    assert (second.is_full, heads.heads_of(second)) == (False, {TOPIC_PARTITION: chain()})
    assert heads.agrees(heads.moved_on(quiet, second), second)
    for changed in (
        replace(other, next_offset=11),
        replace(other, start_offset=1),
        replace(other, link=b"x" * 32),
    ):
        assert not heads.agrees(heads.moved_on({other.topic_partition: changed}, second), second)
    assert not heads.agrees(heads.moved_on({}, second), second)


def test_a_statement_before_which_nothing_is_known_to_have_been_signed_is_full():
    assert state(Last(7, "ab" * 32), [chain()], {TOPIC_PARTITION}, now=NOW).is_full


def test_every_sixtieth_statement_is_full():
    full = [number + 1 for number in range(3 * FULL_EVERY) if is_full_due(Last(number))]
    assert full == [1, 61, 121]
