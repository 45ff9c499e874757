"""Files of rows as people have them, uploaded as the JSON lines that the platform reads."""

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ops.errors import RefusedByPlatform

MAX_SUITE_BYTES = 512 * 1024 * 1024
"""Most bytes of JSON lines that the gate reads of a suite."""
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
CHUNK_BYTES = 1024 * 1024
EXPECTED = "expected JSON lines (one object a line), those in gzip, or Parquet"


@contextmanager
def json_lines_of(path: Path, *, at_most_bytes: float = math.inf) -> Iterator[Path]:
    """The file itself if it has JSON lines, else one that lives as long as the context. Raises RefusedByPlatform.

    The first bytes decide what a file is, not its name. `at_most_bytes`: of the JSON lines that are written.
    """
    if not path.is_file():
        raise RefusedByPlatform(f"{path}: no such file")
    with path.open("rb") as file:
        start = file.read(CHUNK_BYTES)
    write = WRITERS.get(start[:2]) or WRITERS.get(start[:4])
    if write is None:
        _require_object(path, start)
        yield path
        return
    with TemporaryDirectory(prefix="retune-rows-") as folder:
        lines = Path(folder) / f"{path.name.partition('.')[0] or 'rows'}.jsonl"
        write(path, lines, at_most_bytes)
        yield lines


def _unzip(path: Path, lines: Path, at_most_bytes: float) -> None:
    size = 0
    try:
        with gzip.open(path) as zipped, lines.open("wb") as file:
            while chunk := zipped.read(CHUNK_BYTES):
                if size == 0:
                    _require_object(path, chunk)
                size += len(chunk)
                _require_size(path, size, at_most_bytes)
                file.write(chunk)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RefusedByPlatform(f"{path}: broken gzip ({error})") from error
    if size == 0:
        _require_object(path, b"")


def _from_parquet(path: Path, lines: Path, at_most_bytes: float) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    size = number = 0
    try:
        with parquet.ParquetFile(path) as table, lines.open("wb") as file:
            for batch in table.iter_batches(batch_size=1_000):
                for row in batch.to_pylist(maps_as_pydicts="strict"):
                    number += 1
                    line = _line(path, number, _without_nulls(row))
                    size += len(line)
                    _require_size(path, size, at_most_bytes)
                    file.write(line)
    except (pa.ArrowException, OSError) as error:
        raise RefusedByPlatform(f"{path}: not readable as Parquet ({error})") from error


def _without_nulls(value: Any) -> Any:
    """Return the value without fields that are null: Parquet has every field of a struct in every row."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _line(path: Path, number: int, row: dict[str, Any]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, default=_text).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise RefusedByPlatform(f"{path}, row {number}: {error}, expected what JSON has") from error


def _text(value: object) -> str:
    if isinstance(value, date | time | Decimal):
        return str(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _require_object(path: Path, start: bytes) -> None:
    stripped = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not stripped.startswith(b"{"):
        begins = f"begins with {stripped[:12]!r}" if stripped else "is empty"
        raise RefusedByPlatform(f"{path} {begins}, {EXPECTED}")


def _require_size(path: Path, size: int, at_most_bytes: float) -> None:
    if size > at_most_bytes:
        raise RefusedByPlatform(f"{path}: over {at_most_bytes} bytes as JSON lines, expected at most that")


WRITERS: dict[bytes, Callable[[Path, Path, float], None]] = {GZIP: _unzip, PARQUET: _from_parquet}
