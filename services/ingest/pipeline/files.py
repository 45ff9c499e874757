"""The files of a dataset as rows: which format a file has, and its lines under the policy's caps."""

import math
from pathlib import Path
from typing import BinaryIO

from schemas.specification import DatasetFormat, DatasetPolicy, format_of_row
from services.ingest.pipeline.lines import LineReader, parse_object
from services.ingest.pipeline.rules import BadRow
from shared.parquet import open_rows
from shared.row_files import MAX_GATE_BYTES

HOLDOUT = "holdout"


def open_file(path: Path, role: str) -> BinaryIO:
    """Open a file of a dataset as JSON lines, of a holdout no more of them than the gate takes."""
    return open_rows(path, at_most_bytes=MAX_GATE_BYTES if role == HOLDOUT else math.inf)


def reader_of(stream: BinaryIO, name: str, policy: DatasetPolicy) -> LineReader:
    return LineReader(stream, name=name, max_row_bytes=policy.max_row_bytes, max_rows=policy.max_rows)


def format_of_file(path: Path, name: str, policy: DatasetPolicy) -> DatasetFormat | None:
    """The format of the first row that has one. Raises FileRefused if the file has no rows at all."""
    with open_file(path, name) as stream:
        for line in reader_of(stream, name, policy):
            try:
                file_format = format_of_row(parse_object(line, max_row_bytes=policy.max_row_bytes))
            except BadRow:
                continue
            if file_format is not None:
                return file_format
    return None
