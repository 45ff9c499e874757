"""Reading a file of rows line by line under caps: size of a row, number of rows, nesting, encoding."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from services.ingest.pipeline.rules import BadRow, FileRefused
from shared.parquet import BadParquet
from shared.strict_json import JsonProblem, read_json, shown

CHUNK_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"
OTHER_FORMATS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank. A line above the cap has no content, only its size."""

    number: int
    content: bytes
    size_bytes: int


class LineReader:
    """Iterates over the lines of a stream, holding at most one of them."""

    def __init__(self, stream: BinaryIO, *, name: str, max_row_bytes: int, max_rows: int) -> None:
        self.blank_lines = 0
        self.rows = 0
        self.has_bom = False
        self._stream = stream
        self._name = name
        self._max_row_bytes = max_row_bytes
        self._max_rows = max_rows

    def __iter__(self) -> Iterator[Line]:
        for number, line in enumerate(self._raw_lines(), start=1):
            if not line.content.strip() and line.size_bytes <= self._max_row_bytes:
                self.blank_lines += 1
                continue
            self.rows += 1
            if self.rows > self._max_rows:
                raise FileRefused(
                    "too_many_rows",
                    f"the {self._name} file has more than {self._max_rows} rows (policy.max_rows)",
                )
            yield Line(number, line.content, line.size_bytes)

    def _raw_lines(self) -> Iterator[Line]:
        first = True
        while content := self._readline():
            if first:
                content = self._without_bom(content)
                first = False
            if len(content) <= self._max_row_bytes or content.endswith(b"\n"):
                yield Line(0, content, len(content.rstrip(b"\r\n")))
            else:
                yield Line(0, b"", len(content) + self._skip_rest())

    def _readline(self) -> bytes:
        try:
            return self._stream.readline(self._max_row_bytes + 1)
        except BadParquet as problem:
            raise FileRefused("bad_parquet", f"the {self._name} file {problem}") from problem

    def _without_bom(self, content: bytes) -> bytes:
        for magic, name in OTHER_FORMATS.items():
            if content.startswith(magic):
                raise FileRefused(
                    "not_jsonl",
                    f"the {self._name} file is {name}, expected plain UTF-8 JSONL, or Parquet: unpack or convert it",
                )
        self.has_bom = content.startswith(BOM)
        return content.removeprefix(BOM)

    def _skip_rest(self) -> int:
        skipped = 0
        while chunk := self._stream.readline(CHUNK_BYTES):
            skipped += len(chunk.rstrip(b"\r\n"))
            if chunk.endswith(b"\n"):
                break
        return skipped


def parse_object(line: Line, *, max_row_bytes: int) -> dict[str, Any]:
    """The JSON object on a line. Raises BadRow for everything else, also for keys that occur twice."""
    if line.size_bytes > max_row_bytes:
        raise BadRow("json.too_large", "row", f"{line.size_bytes} bytes, at most {max_row_bytes}")
    try:
        value = read_json(_decoded(line.content))
    except JsonProblem as problem:
        raise BadRow(f"json.{problem.code}", problem.field or "row", problem.found) from None
    if not isinstance(value, dict):
        raise BadRow("json.not_object", "row", shown(value))
    return value


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadRow(
            "json.utf8", "row", f"byte 0x{content[error.start]:02x} at byte {error.start + 1} of the line"
        ) from None
