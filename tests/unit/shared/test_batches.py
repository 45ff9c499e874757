"""A record whose header's name is no text is read, and so is what comes behind it."""

import struct

import pytest
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition

from shared.messaging.batches import TolerantRecords

CRC, CHECKED = slice(17, 21), slice(21, None)


def with_no_text(batch: bytes) -> bytes:
    """The same batch, with bytes that are no UTF-8 in the place of `XXXX`."""
    spoilt = bytearray(bytes(batch).replace(b"XXXX", b"\xff\xfeA\xff"))
    spoilt[CRC] = struct.pack(">I", calc_crc32c(bytes(spoilt[CHECKED])))
    return bytes(spoilt)


def a_batch(*names: bytes, base_offset: int = 0) -> bytes:
    """One record for each header name; the one called `XXXX` becomes no text."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=10_000,
    )
    for offset, name in enumerate(names):
        builder.append(offset, timestamp=1, key=b"k", value=b"v", headers=[(name.decode(), b"1")])
    batch = with_no_text(builder.build())
    return struct.pack(">q", base_offset) + batch[8:]


def read(data: bytes, *, offset: int = 0) -> list[tuple[int, str]]:
    """As a consumer's fetcher does it: offset and header name of each record."""
    records = PartitionRecords(
        TopicPartition("t", 0), TolerantRecords(data), [], offset, None, None, True, "read_committed"
    )
    return [(record.offset, record.headers[0][0]) for record in records]


def test_good_batches_are_read_as_ever():
    data = a_batch(b"a", b"b") + a_batch(b"c", base_offset=2)
    assert read(data) == [(0, "a"), (1, "b"), (2, "c")]
    assert read(data, offset=1) == [(1, "b"), (2, "c")]


@pytest.mark.parametrize("place", range(3))
def test_a_name_that_is_no_text_stops_nobody(place: int):
    names = [b"a", b"b", b"c"]
    names[place] = b"XXXX"
    found = read(a_batch(*names) + a_batch(b"d", base_offset=3))
    expected = [(offset, name.decode()) for offset, name in enumerate([*names, b"d"])]
    expected[place] = (place, r"\xff\xfeA\xff")
    assert found == expected


def test_the_rest_of_a_batch_that_was_cut_off_is_left_for_the_next_fetch():
    whole = a_batch(b"a", b"XXXX")
    assert read(whole + a_batch(b"c", base_offset=2)[:-3]) == [(0, "a"), (1, r"\xff\xfeA\xff")]
