"""The files of a dataset as rows: which format a file has, and its lines under the policy's caps."""

from pathlib import Path
from typing import BinaryIO

from schemas.specification import DatasetFormat, DatasetPolicy, format_of_row
from services.ingest.pipeline.lines import LineReader, parse_object
from services.ingest.pipeline.rules import BadRow

HOLDOUT = "holdout"


def reader_of(stream: BinaryIO, name: str, policy: DatasetPolicy) -> LineReader:
    return LineReader(stream, name=name, max_row_bytes=policy.max_row_bytes, max_rows=policy.max_rows)


def format_of_file(path: Path, name: str, policy: DatasetPolicy) -> DatasetFormat | None:
    """The format of the first row that has one. Raises FileRefused if the file is no JSONL at all."""
    with path.open("rb") as stream:
        for line in reader_of(stream, name, policy):
            try:
                file_format = format_of_row(parse_object(line, max_row_bytes=policy.max_row_bytes))
            except BadRow:
                continue
            if file_format is not None:
                return file_format
    return None
