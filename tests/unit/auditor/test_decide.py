"""Where the auditor reads on, and what it says."""

import hashlib
from datetime import UTC, datetime

import pytest

from schemas.audit import NOTHING_BEFORE
from schemas.topics import TOPICS, is_audited
from services.auditor.decide import Last, chains_of, plan, state
from shared.audit.chain import Chain, begin
from shared.place import Place

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)
PLACE = Place("job.events", 0)


def chain(place: Place = PLACE, *, start: int = 0, next_offset: int = 10) -> Chain:
    return Chain(place, start, next_offset, hashlib.sha256(repr(place).encode()).digest())


def test_all_topics_are_audited_but_what_may_be_lost():
    assert {topic.name for topic in TOPICS if not is_audited(topic.name)} == {"run.metrics"}
    assert is_audited("tenant.acme.commands")
    assert not [name for name in ("__consumer_offsets", "tenant.acme.events", "other") if is_audited(name)]


def test_a_new_partition_begins_where_it_begins():
    planned = plan({}, {PLACE: range(4, 9)})
    assert planned.read == planned.began == (begin(PLACE, at=4),)
    assert (planned.missed, planned.cut) == ((), ())


@pytest.mark.parametrize("there", [range(10), range(10, 10), range(3, 50)])
def test_a_known_one_goes_on_where_it_was(there: range):
    planned = plan({PLACE: chain()}, {PLACE: there})
    assert (planned.read, planned.began, planned.missed, planned.cut) == ((chain(),), (), (), ())


def test_records_gone_before_they_were_read_begin_a_new_chain():
    planned = plan({PLACE: chain()}, {PLACE: range(11, 20)})
    assert planned.read == planned.began == (begin(PLACE, at=11),)
    assert planned.missed == (chain(),)


def test_a_log_that_ends_before_what_was_read_is_left_alone():
    planned = plan({PLACE: chain()}, {PLACE: range(9)})
    assert (planned.read, planned.began, planned.cut) == ((), (), (chain(),))


def test_a_topic_that_is_gone_is_not_read_and_not_forgotten():
    assert plan({PLACE: chain()}, {}).read == ()


def test_a_statement_names_every_chain_and_the_statement_before():
    other = chain(Place("dataset.events", 2), start=3)
    first = state(Last(), [chain(), other], now=NOW)
    assert (first.number, first.previous_sha256, first.signed_at) == (1, NOTHING_BEFORE, NOW)
    assert [(said.topic, said.partition) for said in first.partitions] == [other.place, PLACE]
    assert chains_of(first) == [other, chain()]
    second = state(Last(1, "ab" * 32), [], now=NOW)
    assert (second.number, second.previous_sha256) == (2, "ab" * 32)
