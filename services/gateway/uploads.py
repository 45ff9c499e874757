"""What an upload is: are its first rows JSON objects at all, and of which format? Ingest checks every row."""

import unicodedata
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from schemas.specification import DatasetFormat, format_of_row
from services.gateway.errors import ApiError, not_available_yet
from shared.nesting import shallow_json
from shared.parquet import open_rows

ROWS_LOOKED_AT = 20
MAX_ROW_BYTES = 4 * 1024 * 1024
DATASET_PURPOSES = frozenset({"fine-tune"})
"""Purposes of tenants' files."""
SUITE_PURPOSES = frozenset({"benchmark", "safety-suite"})
"""Purposes of the operator's files: who could read the gate's questions could train on them."""
FIELDS = frozenset({"file", "purpose"})
PART_FIELDS = frozenset({"data"})
MAX_PART_BYTES = 64 * 1024 * 1024
"""OpenAI's limit on the size of a part."""
PART_PURPOSE = "upload-part"
MAX_FILENAME_CHARACTERS = 255
MAX_SHOWN_CHARACTERS = 80


def require_fields(names: Iterable[str], expected: Collection[str] = FIELDS) -> None:
    """Refuse what is not known, and what is named twice or missing."""
    field_names = list(names)
    for name in field_names:
        if name.startswith("expires_after"):
            raise not_available_yet("expires_after")
        if name not in expected:
            message = f"{name[:80]}: unknown field, expected {' and '.join(sorted(expected))}"
            raise ApiError(400, message, param=name[:80], code="unknown_parameter")
    for name in sorted(expected):
        if (number := field_names.count(name)) != 1:
            code = "invalid_value" if number else "missing_required_parameter"
            raise ApiError(400, f"{name}: found {number} of it, expected one", param=name, code=code)


def require_purpose(purpose: str, known: Collection[str]) -> None:
    if purpose not in known:
        expected = ", ".join(sorted(known))
        message = f"purpose: found {purpose[:80]!r}, expected {expected}"
        raise ApiError(400, message, param="purpose", code="invalid_value")


def safe_name(filename: str) -> str:
    """A name to show: no folders, no control characters."""
    last = filename.replace("\\", "/").rpartition("/")[2]
    shown = "".join(letter for letter in last if unicodedata.category(letter)[0] != "C").strip()
    return (shown.strip(".") and shown[:MAX_FILENAME_CHARACTERS]) or "upload.jsonl"


def detect_format(path: Path, *, purpose: str) -> DatasetFormat | None:
    """The format of the first row. Raises ApiError where the file cannot be rows of objects; BadParquet."""
    dataset_format: DatasetFormat | None = None
    rows = 0
    with open_rows(path) as file:
        for number, line in enumerate(_lines(file), 1):
            if not line.strip():
                continue
            row = _row(line, number)
            rows += 1
            if rows == 1 and purpose in DATASET_PURPOSES:
                dataset_format = _format(row, number)
            if rows >= ROWS_LOOKED_AT:
                break
    if rows == 0:
        raise invalid_file("the file has no rows, expected one JSON object per line, or Parquet")
    return dataset_format


def count_lines(path: Path) -> int:
    """Lines with something in them."""
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def _lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(MAX_ROW_BYTES + 1):
        yield line


def _row(line: bytes, number: int) -> dict[str, object]:
    if len(line) > MAX_ROW_BYTES:
        raise invalid_file(f"line {number} has over {MAX_ROW_BYTES} bytes")
    if line.startswith(b"\x1f\x8b"):
        raise invalid_file("the file is gzip, expected plain JSON lines, or Parquet")
    try:
        row = shallow_json(line)
    except ValueError as error:
        raise invalid_file(f"line {number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise invalid_file(f"line {number}: found {type(row).__name__}, expected a JSON object")
    return row


def _format(row: dict[str, object], number: int) -> DatasetFormat:
    dataset_format = format_of_row(row)
    if dataset_format is None:
        keys = ", ".join(key[:MAX_SHOWN_CHARACTERS] for key in sorted(row)[:8])
        expected = "messages; prompt and completion; prompt, chosen and rejected; or text"
        raise invalid_file(f"line {number}: found keys {keys}, expected {expected}")
    return dataset_format


def invalid_file(message: str) -> ApiError:
    return ApiError(400, f"file: {message}", param="file", code="invalid_file")
