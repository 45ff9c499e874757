"""The sample files of a new job: rows as ingest reads them."""

import json

import pytest

from schemas.specification import DatasetFormat, format_of_row
from services.gateway.page import samples
from services.ingest.pipeline.formats import parse_example


@pytest.mark.parametrize("kind", [*DatasetFormat])
def test_each_row_is_read_as_its_kind(kind):
    rows = [json.loads(line) for line in samples.as_file(kind).splitlines()]
    assert len(rows) >= 3
    for line, row in enumerate(rows, 1):
        assert format_of_row(row) is kind
        parse_example(row, expected=kind, line=line)
