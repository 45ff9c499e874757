"""Every bit of a record, and its location, is in the link."""

import hashlib
from dataclasses import replace

import pytest

from shared.audit.chain import Chain, begin, encoded_head, extend, next_link
from shared.partition import Partition
from shared.record import Record
from tests.unit.auditor.records import TOPIC_PARTITION, records, seeded

LINK = bytes(32)
PLAIN = Record("t", 0, 7, b"key", (("a", b"1"), ("b", None)), b"value", 1000)
CHANGES = {
    "offset": {"offset": 8},
    "time": {"timestamp_ms": 1001},
    "key": {"key": b"kez"},
    "no key": {"key": None},
    "empty key": {"key": b""},
    "value": {"value": b"valuf"},
    "no value": {"value": None},
    "empty value": {"value": b""},
    "header's value": {"headers": (("a", b"2"), ("b", None))},
    "header's name": {"headers": (("c", b"1"), ("b", None))},
    "header's value emptied": {"headers": (("a", b"1"), ("b", b""))},
    "header left out": {"headers": (("a", b"1"),)},
    "headers in another order": {"headers": (("b", None), ("a", b"1"))},
    "bytes moved from the key to the value": {"key": b"ke", "value": b"yvalue"},
    "bytes moved from a header to the next": {"headers": (("a", b""), ("1b", None))},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_record_has_another_link(change: dict):
    links = [
        next_link(LINK, PLAIN),
        *(next_link(LINK, replace(PLAIN, **other)) for other in CHANGES.values()),
    ]
    assert len(set(links)) == len(links)
    assert next_link(LINK, replace(PLAIN, **change)) != next_link(LINK, PLAIN)


def test_the_link_before_is_in_the_link():
    assert next_link(LINK, PLAIN) != next_link(b"\1" + LINK[1:], PLAIN)


def test_chains_of_two_topic_partitions_begin_differently():
    links = [
        begin(Partition(topic, partition), at=at).link
        for topic in ("a", "a1")
        for partition in (0, 1)
        for at in (0, 1, 10)
    ]
    assert len(set(links)) == len(links)


def test_a_chain_is_the_same_however_it_is_cut_into_batches():
    rng, seed_hint = seeded("batches")
    log = records(rng, 50, start=5)
    whole = extend(begin(TOPIC_PARTITION, at=5), log)
    for _ in range(50):
        chain, rest = begin(TOPIC_PARTITION, at=5), log
        while rest:
            size = rng.randrange(1, len(rest) + 1)
            chain, rest = extend(chain, rest[:size]), rest[size:]
        assert chain == whole, seed_hint
    assert (whole.start_offset, whole.next_offset) == (5, 55)
    times = [record.timestamp_ms for record in log]
    assert (whole.oldest_ms, whole.newest_ms) == (min(times), max(times))


def test_a_chain_ends_with_the_link_of_its_last_record_and_the_times_of_all():
    first = replace(PLAIN, offset=3, timestamp_ms=900)
    chain = begin(Partition("t", 0), at=2)
    longer = extend(chain, [first, PLAIN])
    link = next_link(next_link(chain.link, first), PLAIN)
    assert longer == Chain(Partition("t", 0), 2, 8, link, oldest_ms=900, newest_ms=1000)
    assert extend(longer, []) == longer
    assert extend(chain, []) == chain


def test_it_may_skip_offsets_and_never_goes_back():
    one = extend(begin(Partition("t", 0), at=0), [PLAIN])
    assert one.next_offset == 8
    with pytest.raises(ValueError, match=r"found the record t/0@7, expected one at or behind t/0@8"):
        extend(one, [PLAIN])
    with pytest.raises(ValueError, match=r"found the record t/0@7, expected one at or behind u/0@0"):
        extend(begin(Partition("u", 0), at=0), [PLAIN])


def number(value: int) -> str:
    return f"{value:016x}"


def test_a_link_is_the_digest_of_the_bytes_that_the_format_names():
    """Statements that were signed stay valid as long as it is these bytes."""
    start = number(21) + b"retune.audit.chain.v1".hex() + number(1) + b"t".hex() + number(1) + b"0".hex()
    beginning = begin(Partition("t", 0), at=5)
    assert beginning.link == hashlib.sha256(bytes.fromhex(start + number(1) + b"5".hex())).digest()
    record = "".join(
        (
            *(number(7), number(1000), number(3), b"key".hex(), number(2)),
            *(number(1), b"a".hex(), number(1), b"1".hex(), number(1), b"b".hex(), "ff" * 8),
            *(number(5), b"value".hex()),
        )
    )
    assert next_link(LINK, PLAIN) == hashlib.sha256(LINK + bytes.fromhex(record)).digest()


def test_a_record_without_a_time_has_a_link():
    """Kafka says -1 where nobody set one."""
    record = Record("t", 0, 7, None, (), None, -1)
    without_time = number(7) + "ff" * 8 + "ff" * 8 + number(0) + "ff" * 8
    assert next_link(LINK, record) == hashlib.sha256(LINK + bytes.fromhex(without_time)).digest()


def test_a_head_is_the_partition_its_first_and_next_offset_and_the_link():
    head = encoded_head(Chain(Partition("t", 3), 5, 55, LINK))
    assert head == bytes.fromhex(number(1) + b"t".hex() + number(3) + number(5) + number(55)) + LINK
