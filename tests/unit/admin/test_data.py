"""What the operator reads about a dataset."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from schemas.dataset import RowProblem
from services.admin.api import RefusedByPlatform
from services.admin.commands import data

REJECTED = {
    "id": "ds-1",
    "status": "rejected",
    "code": "bad_rows",
    "message": "1 of 4 rows of the holdout file are bad",
    "problems": [
        RowProblem(
            file="holdout",
            line=4,
            field="messages[1].content",
            rule="chat.content_empty",
            found="''",
            fix="write it",
        ).model_dump(mode="json")
    ],
}


@pytest.fixture
def _platform(monkeypatch):
    answers = SimpleNamespace(post=lambda path, body: REJECTED, upload=lambda path, purpose: {"id": "file-1"})
    monkeypatch.setattr(data, "api", lambda: answers)


@pytest.mark.usefixtures("_platform")
def test_a_rejection_names_each_bad_row_with_its_file():
    with pytest.raises(RefusedByPlatform) as refusal:
        data.validate(Path("train.jsonl"), model="tiny")
    assert str(refusal.value).splitlines() == [
        "bad_rows: 1 of 4 rows of the holdout file are bad",
        "holdout file, line 4, messages[1].content: chat.content_empty, found '': write it",
    ]
