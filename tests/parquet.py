"""Parquet files for tests."""

import io
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import parquet


def parquet_of(rows: Iterable[Mapping[str, Any]] | pa.Table, **options: Any) -> bytes:
    """Return a Parquet file with these rows."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_struct_array(pa.array(list(rows)))
    file = io.BytesIO()
    parquet.write_table(table, file, **options)
    return file.getvalue()
