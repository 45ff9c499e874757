"""`retune doctor`: what it prints, its exit code, and that it looks twice before it alarms."""

import json

import pytest

from ops.doctor import examination
from ops.doctor.history import History
from tests.unit.ops.histories import a_history, without


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[History]:
    """What the stack looks like at each look, the last one for ever; nobody waits in between."""
    looks = [a_history()]

    async def read(connection, *, deep, say):
        say("read")
        return looks.pop(0) if len(looks) > 1 else looks[0]

    async def at_once(seconds):
        return None

    monkeypatch.setattr(examination, "read_history", read)
    monkeypatch.setattr(examination.asyncio, "sleep", at_once)
    return looks


def test_a_whole_stack(retune, stacks):
    code, out, err = retune.run("--json", "doctor")
    assert (code, json.loads(out)) == (0, [])
    assert err.splitlines() == ["read", "18 invariants hold"]


def test_a_broken_stack(retune, stacks):
    stacks[:] = [without(a_history(), "EvalPassed")]
    code, out, err = retune.run("--json", "doctor")
    (finding,) = json.loads(out)
    assert code == 1
    assert finding == {
        "invariant": "I1 published",
        "where": "evaluator.outbox event EvalPassed-ev-1-1 (EvalPassed of ev-1)",
        "found": "written at 2027-03-01 12:00:28+00:00 and sent, not in eval.events",
        "expected": "its record; `retune relay republish` sends it again",
    }
    assert err.splitlines()[-1] == "1 findings"


def test_for_people_it_is_a_table(retune, stacks):
    stacks[:] = [without(a_history(), "EvalPassed")]
    _, out, _ = retune.run("doctor")
    assert out.split()[:4] == ["invariant", "where", "found", "expected"]
    assert "I1 published" in out


def test_what_is_gone_at_the_second_look_is_no_finding(retune, stacks):
    stacks[:] = [without(a_history(), "EvalPassed"), a_history()]
    code, out, err = retune.run("--json", "doctor")
    assert (code, json.loads(out)) == (0, [])
    assert err.splitlines()[1] == "1 findings; looking again in 30 s"


def test_without_a_role_in_postgres_it_says_what_is_missing(retune):
    code, _, err = retune.run("doctor")
    assert code == 3
    assert err.startswith("RETUNE_POSTGRES_DSN is not set")
