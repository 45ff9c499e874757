"""Files of rows as people have them, uploaded as the JSON lines that the platform reads."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ops.errors import RefusedByPlatform

MAX_BYTES = 512 * 1024 * 1024
"""Most bytes of JSON lines: as much as the gate reads of a suite."""
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
CHUNK_BYTES = 1024 * 1024
EXPECTED = "expected JSON lines (one object a line), those in gzip, or Parquet"


@contextmanager
def json_lines_of(path: Path) -> Iterator[Path]:
    """The file itself if it has JSON lines, else one that lives as long as the context. Raises RefusedByPlatform.

    The first bytes decide what a file is, not its name.
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
        write(path, lines)
        yield lines


def _unzip(path: Path, lines: Path) -> None:
    size = 0
    try:
        with gzip.open(path) as zipped, lines.open("wb") as file:
            while chunk := zipped.read(CHUNK_BYTES):
                if size == 0:
                    _require_object(path, chunk)
                size += len(chunk)
                _require_size(path, size)
                file.write(chunk)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RefusedByPlatform(f"{path}: broken gzip ({error})") from error
    if size == 0:
        _require_object(path, b"")


def _from_parquet(path: Path, lines: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    size = number = 0
    try:
        with parquet.ParquetFile(path) as table, lines.open("wb") as file:
            for batch in table.iter_batches(batch_size=1_000):
                for row in batch.to_pylist():
                    number += 1
                    line = _line(path, number, row)
                    size += len(line)
                    _require_size(path, size)
                    file.write(line)
    except (pa.ArrowException, OSError) as error:
        raise RefusedByPlatform(f"{path}: not readable as Parquet ({error})") from error


def _line(path: Path, number: int, row: dict[str, Any]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise RefusedByPlatform(f"{path}, row {number}: {error}, expected what JSON has") from error


def _require_object(path: Path, start: bytes) -> None:
    stripped = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not stripped.startswith(b"{"):
        begins = f"begins with {stripped[:12]!r}" if stripped else "is empty"
        raise RefusedByPlatform(f"{path} {begins}, {EXPECTED}")


def _require_size(path: Path, size: int) -> None:
    if size > MAX_BYTES:
        raise RefusedByPlatform(f"{path}: over {MAX_BYTES} bytes as JSON lines, expected at most that")


WRITERS: dict[bytes, Callable[[Path, Path], None]] = {GZIP: _unzip, PARQUET: _from_parquet}
