"""Reading of the record batches in Kafka's fetch response, for any input and within bounds.

aiokafka decompresses without a limit, and raises at a batch that it cannot read without ever passing it, so that one
record of any client that may write a topic stops every reader of its partition. Here only the first mismatch of a
checksum raises: each offset of a batch that cannot be read becomes a record whose value is an UnreadableBatch. The
module replaces a private name of the pinned aiokafka.
"""

from collections import deque
from collections.abc import Iterator
from hashlib import sha256
from struct import Struct, unpack_from
from typing import NamedTuple

from aiokafka.consumer import fetcher
from aiokafka.record.util import calc_crc32c

from schemas.envelope import MAX_HEADERS
from shared.messaging.codecs import Undecodable, decompress

MAX_BATCH_BYTES = 8 * 1024 * 1024
"""Limit of a batch after decompression: eight times what the broker takes, and 32 of the largest messages that are
read. Data that a producer compressed in good faith seldom shrinks by more."""
MAX_READ_HEADERS = 10 * MAX_HEADERS
"""Number of headers of one record that are read; those behind them are kept as a digest."""
MORE_HEADERS = "retune-more-headers"
MAX_STAND_INS = 1_000
"""Limit for one batch: a megabyte may claim a hundred million offsets, and each stand-in is a row for a person."""

# baseOffset length leaderEpoch magic crc attributes lastOffsetDelta baseTimestamp maxTimestamp producerId
# producerEpoch baseSequence records: https://kafka.apache.org/documentation/#recordbatch
HEADER = Struct(">qiibIhiqqqhii")
LENGTH_OFFSET, OVERHEAD_BYTES, MAGIC_OFFSET, CHECKED_OFFSET = 8, 12, 16, 21
"""Offset of a batch's length, bytes that the length leaves out, offset of its version, start of the checked data."""
CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
MAX_VARINT_BITS = 63


class UnreadableBatch(bytes):
    """The value of a record that could not be read: the bytes of its batch as they are in the log, or no bytes.

    The first unreadable record of a batch has the bytes; those behind it have none.
    """

    detail: str

    def __new__(cls, raw: bytes, detail: str) -> "UnreadableBatch":
        batch = super().__new__(cls, raw)
        batch.detail = detail
        return batch


class BatchRecord(NamedTuple):
    """A record with the attributes of aiokafka's own records."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    checksum: None = None


class Malformed(ValueError):
    """A record that does not keep the format."""


def patch_batch_reading() -> None:
    """Make every consumer of this process read its batches through `Batches`."""
    fetcher.MemoryRecords = Batches


class Batches:
    """The batches of one partition in one fetch response; a last batch that is cut off there is left out."""

    def __init__(self, data: bytes) -> None:
        self._data = bytes(data)
        self._position = 0

    def size_in_bytes(self) -> int:
        return len(self._data)

    def has_next(self) -> bool:
        left = len(self._data) - self._position
        return left >= OVERHEAD_BYTES and left >= self._size()

    def next_batch(self) -> "Batch":
        end = self._position + self._size()
        raw, self._position = self._data[self._position : end], end
        return Batch(raw)

    def _size(self) -> int:
        length = int(unpack_from(">i", self._data, self._position + LENGTH_OFFSET)[0])
        return OVERHEAD_BYTES + max(0, length)


_mismatches: deque[tuple[int, int, int]] = deque(maxlen=1_000)
"""Base offset, checksum and computed checksum of batches that were damaged in the log or on their way from it."""


class Batch:
    """A batch with the interface that aiokafka's fetcher needs. Records are decoded one by one, on demand."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._fault = ""
        self.base_offset = int(unpack_from(">q", raw)[0])
        self.producer_id: int | None = None
        self.is_transactional = self.is_control_batch = False
        if len(raw) < HEADER.size or raw[MAGIC_OFFSET] != 2:
            self._fault = f"found {len(raw)} bytes, expected a record batch of version 2"
            self.next_offset = self.base_offset + 1
            return
        fields = HEADER.unpack_from(raw)
        self._crc, self._attributes, self._num_records = fields[4], fields[5], fields[12]
        self._first_timestamp, self._max_timestamp = fields[7], fields[8]
        self.next_offset = self.base_offset + max(0, fields[6]) + 1
        self.producer_id = fields[9]
        self.is_transactional = bool(self._attributes & TRANSACTIONAL)
        self.is_control_batch = bool(self._attributes & CONTROL)
        self._records = self._read()

    def validate_crc(self) -> bool:
        """Return False at a first mismatch: the batch is fetched again. One that stays damaged is unreadable."""
        if self._fault:
            return True
        computed = int(calc_crc32c(self._raw[CHECKED_OFFSET:]))
        if computed == self._crc:
            return True
        mismatch = (self.base_offset, self._crc, computed)
        if mismatch not in _mismatches:
            _mismatches.append(mismatch)
            return False
        self._fault = f"found checksum {computed:#010x}, expected {self._crc:#010x}"
        self.producer_id, self.is_transactional, self.is_control_batch = None, False, False
        return True

    def __iter__(self) -> Iterator[BatchRecord]:
        return self._stand_ins(self.base_offset, self._fault) if self._fault else self._records

    def __next__(self) -> BatchRecord:
        return next(self._records)

    def _read(self) -> Iterator[BatchRecord]:
        offset = self.base_offset
        try:
            for record in self._records_of(self._data()):
                yield record
                offset = record.offset + 1
        except (Malformed, Undecodable, IndexError) as error:
            yield from self._stand_ins(offset, f"{type(error).__name__}: {error}")

    def _records_of(self, data: bytes) -> Iterator[BatchRecord]:
        position, offset = 0, self.base_offset
        # Only where records were compacted away may offsets be missing.
        is_compacted = self._num_records < self.next_offset - offset
        for _ in range(self._num_records):
            record, position = self._record(data, position)
            is_later = is_compacted and offset < record.offset < self.next_offset
            if record.offset != offset and not is_later:
                raise Malformed(f"found offset {record.offset}, expected {offset}")
            offset = record.offset + 1
            yield record
        if position != len(data) or self._num_records < 0:
            left = len(data) - position
            raise Malformed(f"found {left} bytes behind {self._num_records} records, expected none")

    def _data(self) -> bytes:
        data = self._raw[HEADER.size :]
        codec = self._attributes & CODEC
        return decompress(codec, data, limit=MAX_BATCH_BYTES) if codec else data

    def _record(self, data: bytes, position: int) -> tuple[BatchRecord, int]:
        length, position = _varint(data, position)
        end = position + length
        if length < 0 or end > len(data):
            raise Malformed(f"found a record of {length} bytes, {len(data) - position} are left")
        delta, position = _varint(data, position + 1)
        offset_delta, position = _varint(data, position)
        key, position = _field(data, position, end)
        value, position = _field(data, position, end)
        headers, position = _headers(data, position, end)
        if position != end:
            raise Malformed(f"found {end - position} bytes behind a record's headers, expected none")
        is_log_time = bool(self._attributes & LOG_APPEND_TIME)
        time = self._max_timestamp if is_log_time else self._first_timestamp + delta
        if not -(2**63) <= time < 2**63:
            raise Malformed(f"found a time of {time} ms, expected a number of 64 bits")
        return BatchRecord(self.base_offset + offset_delta, time, int(is_log_time), key, value, headers), end

    def _stand_ins(self, first: int, fault: str) -> Iterator[BatchRecord]:
        """Yield a record per offset that could not be read; beyond MAX_STAND_INS the last represents the rest."""
        one_by_one = min(self.next_offset, first + MAX_STAND_INS - 1)
        for offset in range(first, one_by_one):
            yield _stand_in(offset, self._raw if offset == first else b"", fault)
        if one_by_one < self.next_offset:
            rest = f"{fault}; stands for the offsets {one_by_one} to {self.next_offset - 1}"
            yield _stand_in(self.next_offset - 1, b"", rest)


def _stand_in(offset: int, raw: bytes, fault: str) -> BatchRecord:
    return BatchRecord(offset, -1, 0, None, UnreadableBatch(raw, fault), ())


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a zigzag-coded integer and the position behind it. Raises Malformed, or IndexError at the data's end."""
    byte = data[position]
    position += 1
    value, shift = byte & 0x7F, 7
    while byte & 0x80:
        if shift > MAX_VARINT_BITS:
            raise Malformed("found a number of more than ten bytes")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), position


def _field(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size = data[position]
    # Nearly all are shorter than 64 bytes; a call for each would double the time that a record takes.
    if size & 0x81:
        size, position = _varint(data, position)
        if size < 0:
            return None, position
    else:
        size, position = size >> 1, position + 1
    if position + size > end:
        raise Malformed(f"found a field of {size} bytes, {end - position} are left of its record")
    return data[position : position + size], position + size


def _headers(data: bytes, position: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = _varint(data, position)
    if not 0 <= count <= end - position:
        raise Malformed(f"found {count} headers, {end - position} bytes are left of their record")
    headers: list[tuple[str, bytes | None]] = []
    for number in range(count):
        if number == MAX_READ_HEADERS:
            rest = sha256(data[position:end]).hexdigest()
            headers.append((MORE_HEADERS, f"{count - number} more, sha256 {rest}".encode()))
            return tuple(headers), end
        name, position = _field(data, position, end)
        value, position = _field(data, position, end)
        if name is None:
            raise Malformed("found a header without a name")
        headers.append((name.decode("utf-8", "backslashreplace"), value))
    return tuple(headers), position
