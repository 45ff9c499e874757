"""Every batch is read to its end, whatever is in it, and takes no more memory than its bounds allow."""

import hashlib
import struct
import tracemalloc
from collections.abc import Sequence
from itertools import count, islice
from random import Random
from typing import Any

import cramjam
import pytest
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.structs import TopicPartition

from shared.messaging import batches
from shared.messaging.batches import (
    MAX_BATCH_BYTES,
    MAX_READ_HEADERS,
    MAX_STAND_INS,
    Batches,
    UnreadableBatch,
)
from tests.unit.shared.record_batches import (
    ATTRIBUTES,
    COMPRESS,
    FIRST_TIMESTAMP,
    LAST_OFFSET_DELTA,
    MAX_TIMESTAMP,
    NAMES,
    NUM_RECORDS,
    PRODUCER_ID,
    RECORDS_AT,
    a_batch,
    resealed,
)

COMMIT, ABORT = struct.pack(">hh", 0, 1), struct.pack(">hh", 0, 0)
"""Keys of the records that end a transaction."""


def fetch(data: bytes, *, offset: int = 0, aborted: Sequence[tuple[int, int]] = ()) -> Any:
    """As a consumer's fetcher reads a response: `next_fetch_offset` is where the next one begins.

    aborted: producers and the first offsets of their transactions that were aborted.
    """
    return PartitionRecords(
        TopicPartition("t", 0), Batches(data), [*aborted], offset, None, None, True, fetcher.READ_COMMITTED
    )


def changed(raw: bytes, *changes: tuple[slice, bytes]) -> bytes:
    """A batch with other bytes at these places, and the checksum that they have."""
    batch = bytearray(raw)
    for place, content in changes:
        batch[place] = content
    return resealed(bytes(batch))


def read(data: bytes, *, offset: int = 0) -> list[Any]:
    """With a second look at what was damaged."""
    try:
        return list(fetch(data, offset=offset))
    except CorruptRecordException:
        return list(fetch(data, offset=offset))


def detail_of(record: Any) -> str:
    assert isinstance(record.value, UnreadableBatch), record
    return record.value.detail


@pytest.mark.parametrize("codec", [0, *COMPRESS], ids=lambda codec: NAMES.get(codec, "none"))
def test_batches_of_every_codec_are_read(codec: int):
    many = [{"value": b"%d" % number, "headers": [("a", None), ("b", b"\xff")]} for number in range(200)]
    data = a_batch(many, codec=codec) + a_batch([{"key": None, "value": None}], base_offset=200, codec=codec)
    records = read(data)
    assert [record.offset for record in records] == list(range(201))
    assert [record.value for record in records] == [*(each["value"] for each in many), None]
    assert records[0].headers == (("a", None), ("b", b"\xff"))
    assert (records[0].key, records[0].timestamp) == (b"k", 1)
    assert [record.offset for record in read(data, offset=150)] == list(range(150, 201))


def test_gzip_in_several_members_is_read():
    raw = a_batch([{"value": b"1"}, {"value": b"2"}], codec=1)
    plain = a_batch([{"value": b"1"}, {"value": b"2"}])[RECORDS_AT:]
    halves = COMPRESS[1](plain[:5]) + COMPRESS[1](plain[5:])
    assert [record.value for record in read(resealed(raw[:RECORDS_AT] + halves))] == [b"1", b"2"]


def test_one_raw_block_of_snappy_is_read():
    raw = a_batch([{"value": b"1"}], codec=2)
    block = bytes(cramjam.snappy.compress_raw(a_batch([{"value": b"1"}])[RECORDS_AT:]))
    assert [record.value for record in read(resealed(raw[:RECORDS_AT] + block))] == [b"1"]


def test_the_rest_of_a_batch_that_was_cut_off_is_left_for_the_next_fetch():
    response = fetch(a_batch([{}, {}]) + a_batch([{}], base_offset=2)[:-3])
    assert ([record.offset for record in response], response.next_fetch_offset) == ([0, 1], 2)


@pytest.mark.parametrize("codec", COMPRESS, ids=NAMES.get)
def test_a_bomb_becomes_unreadable_records_without_its_memory(codec: int):
    num_bytes = 64 * 1024 * 1024
    bomb = a_batch([{}, {"value": bytes(num_bytes)}], codec=codec)
    after = a_batch([{"value": b"after"}], base_offset=2)
    tracemalloc.start()
    records = read(bomb + after)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [record.offset for record in records] == [0, 1, 2]
    assert detail_of(records[0]).startswith("Undecodable: ")
    assert (bytes(records[0].value), bytes(records[1].value)) == (bomb, b"")
    assert (records[2].value, detail_of(records[1])) == (b"after", detail_of(records[0]))
    assert peak < 4 * MAX_BATCH_BYTES


@pytest.mark.parametrize("codec", range(1, 8))
def test_bytes_of_no_codec_become_unreadable_records(codec: int):
    raw = bytearray(a_batch([{}, {}, {}]) + b"garbage" * 9)
    raw[22] = codec
    response = fetch(resealed(bytes(raw)) + a_batch([{}], base_offset=3))
    records = list(response)
    assert [record.offset for record in records] == [0, 1, 2, 3]
    assert response.next_fetch_offset == 4
    assert detail_of(records[2])
    assert records[3].value == b"v"


def test_a_damaged_batch_is_fetched_again_and_is_unreadable_when_it_stays_so():
    good, bad = a_batch([{}]), bytearray(a_batch([{"value": b"x"}, {}], base_offset=1))
    bad[-1] ^= 1
    data = good + bytes(bad) + a_batch([{}], base_offset=3)
    first = fetch(data)
    with pytest.raises(CorruptRecordException):
        list(first)
    records = list(fetch(data))
    assert [record.offset for record in records] == [0, 1, 2, 3]
    assert detail_of(records[1]).startswith("found checksum 0x")
    assert (records[0].value, bytes(records[1].value), records[3].value) == (b"v", bytes(bad), b"v")
    bad[-1] ^= 2
    with pytest.raises(CorruptRecordException):
        list(fetch(good + bytes(bad)))


def test_records_before_the_one_that_is_malformed_are_read():
    raw = a_batch([{"value": b"aaa"}, {"value": b"bbb"}, {"value": b"ccc"}])
    index = raw.index(b"bbb") - 1
    spoilt = resealed(raw[:index] + b"\x7f" + raw[index + 1 :])
    records = read(spoilt)
    assert [record.offset for record in records] == [0, 1, 2]
    assert records[0].value == b"aaa"
    assert detail_of(records[1]).startswith("Malformed: ")
    assert bytes(records[1].value) == spoilt


def test_a_batch_of_another_version_is_passed():
    raw = bytearray(a_batch([{}]))
    raw[16] = 1
    records = read(bytes(raw) + a_batch([{}], base_offset=1))
    assert [(record.offset, bytes(record.value)) for record in records] == [(0, bytes(raw)), (1, b"v")]
    assert "expected a record batch of version 2" in detail_of(records[0])
    first = records[0]
    assert (first.timestamp, first.timestamp_type, first.key, first.headers) == (-1, 0, None, ())
    batch = Batches(bytes(raw)).next_batch()
    assert (batch.producer_id, batch.is_transactional, batch.is_control_batch) == (None, False, False)


def test_a_batch_of_less_than_no_bytes_is_one_unreadable_record():
    response = Batches(struct.pack(">qi", 7, -1))
    assert response.has_next()
    assert [(record.offset, detail_of(record)) for record in response.next_batch()] == [
        (7, "found 12 bytes, expected a record batch of version 2")
    ]


def test_endless_offsets_become_a_bounded_number_of_records():
    raw = bytearray(a_batch([{}]))
    raw[LAST_OFFSET_DELTA] = struct.pack(">i", 2**31 - 1)
    raw[22] = 1
    response = fetch(resealed(bytes(raw)))
    records = list(response)
    assert len(records) == MAX_STAND_INS
    assert [number for number, record in enumerate(records) if bytes(record.value)] == [0]
    assert (records[-1].offset, response.next_fetch_offset) == (2**31 - 1, 2**31)
    assert detail_of(records[-1]).endswith(f"stands for the offsets {MAX_STAND_INS - 1} to {2**31 - 1}")


def test_records_are_made_as_they_are_asked_for():
    """Millions of small ones fit into the bound on bytes, and none on their number is needed."""
    batch = a_batch([{"key": None, "value": None}] * 200_000, codec=1)
    tracemalloc.start()
    assert [record.offset for record in islice(fetch(batch), 100)] == list(range(100))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 1024 * 1024


def test_headers_are_kept_up_to_a_number_and_the_rest_as_a_digest():
    names = [(f"x-{number}", b"1") for number in range(MAX_READ_HEADERS + 1)]
    (whole,) = read(a_batch([{"headers": names[:-1]}]))
    assert whole.headers == tuple(names[:-1])
    (cut,) = read(a_batch([{"headers": names}]))
    rest = b"\x0cx-1000\x021"
    digest = f"1 more, sha256 {hashlib.sha256(rest).hexdigest()}".encode()
    assert cut.headers == (*names[:-1], (batches.MORE_HEADERS, digest))


@pytest.mark.parametrize(("time", "beyond"), [(2**63 - 1, b"\x02"), (-(2**63), b"\x01")])
def test_a_time_beyond_every_column_is_malformed(time: int, beyond: bytes):
    raw = changed(a_batch([{}]), (FIRST_TIMESTAMP, struct.pack(">q", time)))
    assert raw[RECORDS_AT + 2] == 0  # the time of the first record is that of its batch
    assert [record.timestamp for record in read(raw)] == [time]
    (record,) = read(changed(raw, (slice(RECORDS_AT + 2, RECORDS_AT + 3), beyond)))
    assert detail_of(record).startswith("Malformed: found a time of")


def test_a_record_has_the_time_of_the_log_where_the_topic_asks_for_it():
    of_log = (
        (ATTRIBUTES, struct.pack(">h", batches.LOG_APPEND_TIME)),
        (MAX_TIMESTAMP, struct.pack(">q", 9_000)),
    )
    assert [(record.timestamp, record.timestamp_type) for record in read(a_batch([{}]))] == [(1, 0)]
    assert [
        (record.timestamp, record.timestamp_type) for record in read(changed(a_batch([{}]), *of_log))
    ] == [(9_000, 1)]


class TestTransactions:
    PRODUCER = (PRODUCER_ID, struct.pack(">q", 77))
    OF_TRANSACTION = (ATTRIBUTES, struct.pack(">h", batches.TRANSACTIONAL))
    MARKER = (ATTRIBUTES, struct.pack(">h", batches.TRANSACTIONAL | batches.CONTROL))

    def a_batch(self, offset: int, *changes: tuple[slice, bytes], **record: Any) -> bytes:
        return changed(a_batch([record], base_offset=offset), self.PRODUCER, *changes)

    def offsets(self, *, end: bytes) -> list[int]:
        """A transaction of producer 77 that ended so, and what comes before and behind it."""
        data = self.a_batch(0) + self.a_batch(1, self.OF_TRANSACTION)
        data += self.a_batch(2, self.MARKER, key=end) + self.a_batch(3, self.OF_TRANSACTION)
        aborted = [(77, 1)] if end == ABORT else []
        return [record.offset for record in fetch(data, aborted=aborted)]

    def test_that_were_committed_are_read_without_their_markers(self):
        assert self.offsets(end=COMMIT) == [0, 1, 3]

    def test_that_were_aborted_are_passed(self):
        assert self.offsets(end=ABORT) == [0, 3]


class TestCompaction:
    """It takes records away and leaves the offsets that their batch claims."""

    def offsets(self, raw: bytes, *, num_records: int) -> list[tuple[int, str]]:
        records = read(changed(raw, (NUM_RECORDS, struct.pack(">i", num_records))), offset=5)
        return [(each.offset, getattr(each.value, "detail", "")) for each in records]

    def test_leaves_what_is_read_without_stand_ins(self):
        raw = a_batch([{}, {}, {}], base_offset=5)
        size = (len(raw) - RECORDS_AT) // 3
        first, last = raw[: RECORDS_AT + size], raw[RECORDS_AT + 2 * size :]
        assert self.offsets(first + last, num_records=2) == [(5, ""), (7, "")]
        assert self.offsets(raw[:RECORDS_AT], num_records=0) == []

    def test_makes_no_place_for_records_that_are_not_counted(self):
        raw = a_batch([{}, {}], base_offset=5)
        left = (len(raw) - RECORDS_AT) // 2
        fault = f"Malformed: found {left} bytes behind 1 records, expected none"
        assert self.offsets(raw, num_records=1) == [(5, ""), (6, fault)]

    def test_is_no_reason_for_offsets_that_a_whole_batch_lacks(self):
        raw = a_batch([{}, {}, {}], base_offset=5)
        size = (len(raw) - RECORDS_AT) // 3
        later = changed(
            raw[:RECORDS_AT] + raw[RECORDS_AT + size :], (LAST_OFFSET_DELTA, struct.pack(">i", 1))
        )
        fault = "Malformed: found offset 6, expected 5"
        assert self.offsets(later, num_records=2) == [(5, fault), (6, fault)]


def test_a_record_whose_end_was_cut_off_is_malformed():
    raw = a_batch([{"headers": [("h", b"123")]}])
    (record,) = read(resealed(raw[:-2]))
    assert detail_of(record).startswith("Malformed: found a record of ")


@pytest.mark.parametrize("index", range(3))
def test_a_header_whose_name_is_no_text_stops_nobody(index: int):
    records = [{"headers": [(name, b"1")]} for name in "abc"]
    records[index] = {"headers": [("XXXX", b"1")]}
    spoilt = resealed(a_batch(records).replace(b"XXXX", b"\xff\xfeA\xff"))
    pairs = [(record.offset, record.headers[0][0]) for record in read(spoilt)]
    expected = list(enumerate("abc"))
    expected[index] = (index, r"\xff\xfeA\xff")
    assert pairs == expected


@pytest.mark.parametrize("codec", [0, *COMPRESS], ids=lambda codec: NAMES.get(codec, "none"))
def test_no_change_of_bytes_raises_or_loses_an_offset(codec: int):
    """A thousand batches with random bytes changed, half of them with a checksum that is right."""
    random = Random(codec)
    clean = a_batch([{"value": b"x" * number, "headers": [("h", b"1")]} for number in range(20)], codec=codec)
    for number in islice(count(), 1_000):
        raw = bytearray(clean)
        for _ in range(random.choice((1, 3, 30))):
            raw[random.randrange(27, len(raw))] = random.randrange(256)
        data = resealed(bytes(raw)) if number % 2 else bytes(raw)
        records = read(data)
        assert [record.offset for record in records] == list(range(20)), data.hex()


def test_a_batch_is_read_as_the_client_reads_it_and_by_every_consumer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetcher, "MemoryRecords", None)
    batches.patch_batch_reading()
    assert fetcher.MemoryRecords is Batches
    batch = Batches(a_batch([{"value": b"a"}, {"value": b"b"}])).next_batch()
    assert [next(batch).value, next(batch).value] == [b"a", b"b"]
    with pytest.raises(StopIteration):
        next(batch)


@pytest.mark.parametrize("size", [b"\x00", b"\x80\x00"], ids=["shortest", "padded"])
def test_a_field_of_no_bytes_is_there(size: bytes):
    assert batches._field(size + b"rest", 0, len(size) + 4) == (b"", len(size))
    assert batches._field(b"\x01rest", 0, 5) == (None, 1)


def test_a_batch_names_its_producer():
    raw = changed(a_batch([{}]), (PRODUCER_ID, struct.pack(">q", 77)))
    batch = Batches(raw).next_batch()
    assert (batch.producer_id, batch.is_transactional, batch.is_control_batch) == (77, False, False)


def test_stand_ins_are_of_the_batchs_own_offsets():
    raw = changed(a_batch([{}, {}], base_offset=5), (ATTRIBUTES, struct.pack(">h", 1)))
    assert [record.offset for record in Batches(raw).next_batch()] == [5, 6]
