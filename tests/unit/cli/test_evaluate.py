"""`models evaluate --watch`: how far the gate is on stderr, and an exit code that scripts can read."""

import json

import httpx
import pytest

from cli.commands import models
from tests.unit.cli.commandline import CommandLine

PROGRESS = {
    "activity": "safety",
    "part": "refusals",
    "side": "candidate",
    "done": 30,
    "total": 120,
    "unit": "items",
    "seconds_left": 41.2,
}
STARTED = {"id": "eval-2", "outcome": "running", "reason": "", "progress": None}
UNDER_WAY = STARTED | {"progress": PROGRESS}
PASSED = STARTED | {"outcome": "passed"}
FAILED = STARTED | {"outcome": "failed", "reason": "safety: refusals 46.67, expected at least 95"}


@pytest.fixture
def retune_answering(retune: CommandLine, monkeypatch):
    """The answers of one evaluation, one after the other."""
    monkeypatch.setattr(models, "POLL_SECONDS", 0.0)

    def tell(*story):
        left = list(story)
        retune.answers = {
            "POST /models/docs/evaluate": STARTED,
            "GET /models/docs/evaluation": lambda request: httpx.Response(200, json=left.pop(0)),
        }
        return retune

    return tell


def test_a_pass_ends_with_0_after_how_far_it_is(retune_answering):
    code, out, err = retune_answering(STARTED, UNDER_WAY, UNDER_WAY, PASSED).run(
        "models", "evaluate", "docs", "--watch"
    )
    assert (code, out.strip()) == (0, "eval-2: passed")
    assert err.splitlines() == [
        "eval-2 is running",
        "safety refusals, 30 of 120 items, about 41 s left",
    ]


def test_a_pass_is_printed_for_machines_as_it_is(retune_answering):
    code, out, _ = retune_answering(PASSED).run("--json", "models", "evaluate", "docs", "--watch")
    assert (code, json.loads(out)) == (0, PASSED)


def test_no_pass_ends_with_1_and_says_why(retune_answering):
    code, _, err = retune_answering(FAILED).run("models", "evaluate", "docs", "--watch")
    assert code == 1
    assert "eval-2 failed: safety: refusals 46.67" in err
