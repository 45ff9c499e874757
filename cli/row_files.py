"""Files of rows as people have them, uploaded as the JSON lines or the Parquet that the platform reads."""

import gzip
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ops.errors import RefusedByPlatform
from shared.row_files import is_parquet

GZIP = b"\x1f\x8b"
CHUNK_BYTES = 1024 * 1024
EXPECTED = "expected JSON lines (one object a line), those in gzip, or Parquet"


@contextmanager
def uploadable(path: Path, *, at_most_bytes: float = math.inf) -> Iterator[Path]:
    """The file itself unless it is gzip, else one that lives as long as the context. Raises RefusedByPlatform.

    The first bytes decide what a file is, not its name. `at_most_bytes`: of the JSON lines that are written.
    """
    if not path.is_file():
        raise RefusedByPlatform(f"{path}: no such file")
    with path.open("rb") as file:
        start = file.read(CHUNK_BYTES)
    if not start.startswith(GZIP):
        if not is_parquet(path):
            _require_object(path, start)
        yield path
        return
    with TemporaryDirectory(prefix="retune-rows-") as folder:
        lines = Path(folder) / f"{path.name.partition('.')[0] or 'rows'}.jsonl"
        _unzip(path, lines, at_most_bytes)
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


def _require_object(path: Path, start: bytes) -> None:
    stripped = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not stripped.startswith(b"{"):
        begins = f"begins with {stripped[:12]!r}" if stripped else "is empty"
        raise RefusedByPlatform(f"{path} {begins}, {EXPECTED}")


def _require_size(path: Path, size: int, at_most_bytes: float) -> None:
    if size > at_most_bytes:
        raise RefusedByPlatform(f"{path}: over {at_most_bytes} bytes as JSON lines, expected at most that")
