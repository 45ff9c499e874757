"""Reads record batches as aiokafka does, also those with a header whose name is not UTF-8.

At these aiokafka raises, does not move on and fetches the same batch for ever, so that one record of anybody
who may write a topic stops every reader of its partition. Reaches into private names of the pinned aiokafka.
"""

from collections.abc import Iterator
from itertools import islice
from struct import unpack_from
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords

LENGTH_OFFSET, OVERHEAD_BYTES = 8, 12
"""Where a batch says how long it is, and what that leaves out."""


def tolerate_header_names() -> None:
    """Make every consumer of this process read so."""
    fetcher.MemoryRecords = TolerantRecords


class TolerantRecords:
    """In the place of aiokafka's MemoryRecords."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._records = MemoryRecords(data)
        self._place = 0

    def size_in_bytes(self) -> int:
        return int(self._records.size_in_bytes())

    def has_next(self) -> bool:
        return bool(self._records.has_next())

    def next_batch(self) -> "TolerantBatch":
        length = unpack_from(">i", self._data, self._place + LENGTH_OFFSET)[0]
        end = self._place + OVERHEAD_BYTES + length
        raw, self._place = self._data[self._place : end], end
        return TolerantBatch(self._records.next_batch(), raw)


class TolerantBatch:
    """A batch of aiokafka's; where that cannot go on, the rest is read in Python."""

    def __init__(self, batch: Any, raw: memoryview) -> None:
        self._batch = batch
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        count = 0
        try:
            for record in self._batch:
                yield record
                count += 1
        except UnicodeDecodeError:
            yield from islice(_LenientBatch(self._raw), count, None)


class _LenientBatch(_DefaultRecordBatchPy):  # type: ignore[misc]
    _buffer: Any

    def _read_msg(self) -> Any:
        if not isinstance(self._buffer, _LenientBytes):
            self._buffer = _LenientBytes(self._buffer)
        return super()._read_msg()


class _LenientBytes(bytearray):
    """Bytes that always decode: what is not UTF-8 reads as `\\xff`."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _LenientBytes(found) if isinstance(place, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return super().decode(encoding, "backslashreplace")
