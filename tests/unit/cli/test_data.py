"""What the operator reads about a dataset."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.commands import data
from ops.errors import RefusedByPlatform
from schemas.base import FileRef
from schemas.dataset import RowProblem
from schemas.evaluation import BenchmarkKind, BenchmarkRegistered
from tests.builders import a_sha
from tests.unit.cli.commandline import CommandLine, paged

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
    monkeypatch.setattr(data, "api", lambda: SimpleNamespace(post=lambda path, body: REJECTED))
    monkeypatch.setattr(data, "upload_rows", lambda path, is_used: {"id": "file-1"})


@pytest.mark.usefixtures("_platform")
def test_a_rejection_names_each_bad_row_with_its_file():
    with pytest.raises(RefusedByPlatform) as refusal:
        data.validate(Path("train.jsonl"), model="tiny")
    assert str(refusal.value).splitlines() == [
        "bad_rows: 1 of 4 rows of the holdout file are bad",
        "holdout file, line 4, messages[1].content: chat.content_empty, found '': write it",
    ]


def test_the_file_of_a_suite_is_uploaded_with_the_operators_key(retune: CommandLine, tmp_path):
    """So that no tenant can read what every gate asks."""
    path = tmp_path / "exam.jsonl"
    path.write_text('{"text": "a"}\n')
    stored = {"id": "file-1", "bytes": 14, "filename": "exam.jsonl", "retune": {"sha256": a_sha("exam")}}
    fact = BenchmarkRegistered(
        name="exam",
        kind=BenchmarkKind.TEXT,
        digest=a_sha("digest"),
        file=FileRef(file_id="file-1", sha256=a_sha("exam"), size_bytes=14, filename="exam.jsonl"),
        num_fewshot=0,
        rows=1000,
    )
    retune.answers |= {
        "POST /admin/files": stored,
        "GET /suites": paged({"name": "exam", "digest": fact.digest}),
    }
    retune.follows(fact)
    code, out, _ = retune.run("data", "register-benchmark", "exam", str(path), "--kind", "text")
    assert (code, out) == (0, f"exam: 1000 rows, digest {fact.digest}\n")
    assert retune.requests[0].headers["authorization"] == "Bearer key-of-the-operator"
    assert retune.commands[0].file == fact.file
