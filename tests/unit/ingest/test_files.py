"""Files of a dataset as rows, whichever way they have them."""

import pytest

from schemas.specification import DatasetFormat, DatasetPolicy
from services.ingest.pipeline import files
from services.ingest.pipeline.files import format_of_file
from services.ingest.pipeline.rules import FileRefused
from tests.parquet import parquet_of

POLICY = DatasetPolicy()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(parquet_of([{"text": "a" * 100}, {"text": "b" * 100}]))
    return path


def test_the_format_of_parquet_is_that_of_its_rows(path):
    assert format_of_file(path, "training", POLICY) is DatasetFormat.TEXT


def test_only_a_holdout_is_limited_to_what_the_gate_takes(path, monkeypatch):
    monkeypatch.setattr(files, "MAX_GATE_BYTES", 50)
    assert format_of_file(path, "training", POLICY) is DatasetFormat.TEXT
    with pytest.raises(FileRefused, match="the holdout file has more than 50 bytes as JSON lines") as caught:
        format_of_file(path, "holdout", POLICY)
    assert caught.value.code == "bad_parquet"


def test_parquet_has_as_many_rows_as_the_policy_allows(path):
    policy = POLICY.model_copy(update={"max_rows": 1})
    with files.open_file(path, "training") as stream:
        reader = files.reader_of(stream, "training", policy)
        with pytest.raises(FileRefused, match="more than 1 rows"):
            list(reader)
