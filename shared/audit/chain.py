"""A hash chain per partition: no record can be changed, left out, added or moved without a trace.

link = sha256(link before, offset, timestamp, key, number of headers, each header's name and value, value).
Numbers have eight bytes; the length of each text or byte field precedes it, so that no two lists of fields give
the same bytes. A field without a value has the length 2^64 - 1.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from shared.partition import Partition
from shared.record import Record

NAME = b"retune.audit.chain.v1"
NO_VALUE = b"\xff" * 8
NUMBER_BYTES = 8


@dataclass(frozen=True)
class Chain:
    """The state of a partition's chain: how far it was read, and the link at that offset."""

    topic_partition: Partition
    start_offset: int
    next_offset: int
    link: bytes
    oldest_ms: int | None = None
    """Least time of the records since the previous statement, in milliseconds since 1970; None if there were none."""
    newest_ms: int | None = None


def begin(topic_partition: Partition, *, at: int) -> Chain:
    fields = (NAME, topic_partition.topic.encode(), str(topic_partition.partition).encode(), str(at).encode())
    return Chain(topic_partition, at, at, hashlib.sha256(b"".join(map(_field, fields))).digest())


def extend(chain: Chain, records: Iterable[Record]) -> Chain:
    """Return the chain after these records. Raises ValueError if one is of another partition or out of order."""
    link, next_offset, times = chain.link, chain.next_offset, [chain.oldest_ms, chain.newest_ms]
    for record in records:
        if (record.topic, record.partition) != chain.topic_partition or record.offset < next_offset:
            here = f"{chain.topic_partition.topic}/{chain.topic_partition.partition}@{next_offset}"
            raise ValueError(f"found the record {record.location}, expected one at or behind {here}")
        link = next_link(link, record)
        next_offset = record.offset + 1
        times.append(record.timestamp_ms)
    known = [time for time in times if time is not None]
    oldest, newest = (min(known), max(known)) if known else (None, None)
    return replace(chain, link=link, next_offset=next_offset, oldest_ms=oldest, newest_ms=newest)


def next_link(link: bytes, record: Record) -> bytes:
    return hashlib.sha256(link + b"".join(_fields(record))).digest()


def encoded_head(chain: Chain) -> bytes:
    """Encode the partition, the first and next offset of its chain, and the link."""
    topic, numbers = (
        _field(chain.topic_partition.topic.encode()),
        (chain.topic_partition.partition, chain.start_offset, chain.next_offset),
    )
    return topic + b"".join(map(_number, numbers)) + chain.link


def _fields(record: Record) -> Iterator[bytes]:
    yield _number(record.offset)
    yield _number(record.timestamp_ms)
    yield _field(record.key)
    yield _number(len(record.headers))
    for name, value in record.headers:
        yield _field(name.encode())
        yield _field(value)
    yield _field(record.value)


def _number(value: int) -> bytes:
    return value.to_bytes(NUMBER_BYTES, "big", signed=True)


def _field(value: bytes | None) -> bytes:
    return NO_VALUE if value is None else len(value).to_bytes(NUMBER_BYTES, "big") + value
