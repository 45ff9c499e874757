"""Files of rows read as JSON lines, whether they are JSON lines or Parquet."""

import io
import json
import math
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

from shared.nesting import MAX_NESTING
from shared.row_files import ENCRYPTED, MAGIC, is_parquet
from shared.strict_json import cut

END_BYTES = 8
"""Length of what ends a file: the length of its footer in four bytes, and MAGIC."""
BATCH_ROWS = 64
READ_BYTES = 1 << 20
"""Length of what is read of a column at once, so that no row group is in memory as a whole."""
EXPECTED = "expected text, numbers, booleans, dates, and lists, structs and maps of them"
SCALARS = (
    "boolean",
    "date",
    "decimal",
    "floating",
    "integer",
    "large_string",
    "null",
    "string",
    "string_view",
    "time",
    "timestamp",
)
LISTS = ("fixed_size_list", "large_list", "large_list_view", "list", "list_view")


class BadParquet(ValueError):
    """What follows the name of a file in a sentence: where, what was found, what is expected."""


def open_rows(path: Path, *, at_most_bytes: float = math.inf) -> BinaryIO:
    """Open a file as JSON lines; of a Parquet file each row is a line, with its number.

    at_most_bytes: of the lines that a Parquet file gives. Reading them raises BadParquet, opening the file does not.
    """
    return io.BufferedReader(_ParquetLines(path, at_most_bytes)) if is_parquet(path) else path.open("rb")


def num_rows_of(path: Path) -> int:
    """Return how many rows a Parquet file says that it has. Raises BadParquet."""
    with _opened(path) as table:
        return int(table.metadata.num_rows)


class _ParquetLines(io.RawIOBase):
    """The rows of a Parquet file as JSON lines, of which it holds a batch."""

    def __init__(self, path: Path, at_most_bytes: float) -> None:
        self._lines = _lines_of(path, at_most_bytes)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._lines, b""))
        target = memoryview(buffer)
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def close(self) -> None:
        self._lines.close()
        super().close()


def _lines_of(path: Path, at_most_bytes: float) -> Generator[bytes, None, None]:
    size = 0
    for row in _rows_of(path):
        line = json.dumps(_without_nulls(row), ensure_ascii=False, default=_text).encode() + b"\n"
        size += len(line)
        if size > at_most_bytes:
            raise BadParquet(f"has more than {at_most_bytes} bytes as JSON lines, expected at most that")
        yield line


def _rows_of(path: Path) -> Iterator[dict[str, Any]]:
    number = 1
    with _opened(path) as table:
        batches = table.iter_batches(batch_size=BATCH_ROWS, use_threads=False)
        while True:
            with _problems(f"cannot be read behind row {number - 1}"):
                batch = next(batches, None)
            if batch is None:
                return
            yield from _objects(batch, number)
            number += batch.num_rows


def _objects(batch: Any, first: int) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    except (ArithmeticError, LookupError, ValueError) as error:
        for index in range(batch.num_rows if batch.num_rows > 1 else 0):
            _objects(batch.slice(index, 1), first + index)
        raise BadParquet(f"has in row {first} what JSON has not: {error}") from error
    return rows


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from pyarrow import parquet

    _require_end(path)
    with _problems("has a footer that cannot be read"):
        table = parquet.ParquetFile(path, buffer_size=READ_BYTES, pre_buffer=False)
    with table:
        _require_fields(table.schema_arrow, "", 1)
        yield table


def _require_end(path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
        file.seek(max(0, size - END_BYTES))
        end = file.read()
    if ENCRYPTED in (start, end[-len(ENCRYPTED) :]):
        raise BadParquet("is encrypted Parquet, expected Parquet without encryption")
    footer = int.from_bytes(end[: -len(MAGIC)], "little")
    if size < len(MAGIC) + END_BYTES or not end.endswith(MAGIC):
        raise BadParquet(f"is Parquet that is cut off: its {size} bytes end with {end!r}, expected a footer")
    if footer > size - len(MAGIC) - END_BYTES:
        raise BadParquet(f"is broken Parquet: found a footer of {footer} bytes in a file of {size}")


@contextmanager
def _problems(what: str) -> Iterator[None]:
    """Turn what the library says of the file, and not of the machine, into BadParquet."""
    try:
        yield
    except (ArithmeticError, LookupError, NotImplementedError, ValueError) as error:
        raise BadParquet(f"is Parquet that {what}: {error}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise BadParquet(f"is Parquet that {what}: {error}") from error


def _require_fields(fields: Iterable[Any], prefix: str, depth: int) -> None:
    """Refuse columns, or fields of a struct, that no JSON object has. Raises BadParquet."""
    known = list(fields)
    name, times = Counter(field.name for field in known).most_common(1)[0] if known else ("", 0)
    if times > 1:
        raise BadParquet(f"has {times} columns {cut(repr(prefix + name))}, expected one of each name")
    for field in known:
        _require_kind(field.type, f"{prefix}{field.name}", depth)


def _require_kind(kind: Any, name: str, depth: int) -> None:
    from pyarrow import BaseExtensionType, types

    if depth > MAX_NESTING:
        raise BadParquet(f"has column {cut(repr(name))} of over {MAX_NESTING} levels, expected at most that")
    if isinstance(kind, BaseExtensionType):
        _require_kind(kind.storage_type, name, depth)
    elif types.is_struct(kind):
        _require_fields(kind, f"{name}.", depth + 1)
    elif any(getattr(types, f"is_{each}")(kind) for each in LISTS):
        _require_kind(kind.value_type, f"{name}[]", depth + 1)
    elif types.is_dictionary(kind):
        _require_kind(kind.value_type, name, depth)
    elif types.is_map(kind) and types.is_string(kind.key_type):
        _require_kind(kind.item_type, f"{name}{{}}", depth + 1)
    elif not any(getattr(types, f"is_{each}")(kind) for each in SCALARS):
        raise BadParquet(f"has column {cut(repr(name))} of type {cut(str(kind))}, {EXPECTED}")


def _without_nulls(value: Any) -> Any:
    """Return the value without fields that are null: Parquet has every field of a struct in every row."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _text(value: date | time | Decimal) -> str:
    return str(value)
