"""The child as a process: what it gets, what it says, and how its deaths are told."""

import asyncio
import json
import subprocess
import sys
from datetime import timedelta

import pytest

from services.evaluator.clients.child import ScoringChild, ScoringCrashed
from services.evaluator.scoring.order import Candidate, HoldoutPart, SafetyPart, Side, WorkOrder
from shared.processes.workers import REPOSITORY
from tests.scoring.tiny import WORDS, ask

LONG = timedelta(minutes=5)


@pytest.fixture
def order(base_path, adapter_path, template_sha256, rows):
    prompts = rows("safety.jsonl", [{"prompt": ask(word)} for word in WORDS[:3]])
    return WorkOrder(
        base_path=str(base_path),
        template_sha256=template_sha256,
        candidate=Candidate(kind="adapter", path=str(adapter_path), rank=8),
        parts=(SafetyPart(name="safety:x", path=str(prompts), sides=(Side.CANDIDATE,)),),
        max_new_tokens=8,
    )


def a_child(*, silence=LONG, limit=LONG) -> ScoringChild:
    return ScoringChild(threads=1, silence=silence, limit=limit)


async def test_an_order_goes_out_and_scores_come_back(order, tmp_path):
    scores = await a_child().score(order, tmp_path / "work")
    (part,) = scores.parts
    assert {item.answer for item in part.items} == {"alpha"}
    assert scores.harness_version == order.harness_version


async def test_a_crash_is_reported_with_its_last_words(order, tmp_path):
    part = HoldoutPart(name="holdout", path=str(tmp_path / "missing.jsonl"), sides=(Side.BASE,))
    with pytest.raises(ScoringCrashed, match=r"exit code 1: .*missing\.jsonl"):
        await a_child().score(order.model_copy(update={"parts": (part,)}), tmp_path / "work")


@pytest.mark.parametrize("times", [{"silence": timedelta(0)}, {"limit": timedelta(0)}])
async def test_a_child_that_hangs_is_ended(order, tmp_path, times):
    with pytest.raises(ScoringCrashed, match="silent too long or over its limit"):
        await a_child(**times).score(order, tmp_path / "work")


async def test_a_cancelled_task_leaves_no_child(order, tmp_path):
    scoring = asyncio.ensure_future(a_child().score(order, tmp_path / "work"))
    while not (tmp_path / "work" / "stderr.log").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    scoring.cancel()
    await asyncio.gather(scoring, return_exceptions=True)
    listed = await asyncio.to_thread(subprocess.check_output, ["ps", "-eo", "args"], text=True)
    assert str(tmp_path) not in listed


def test_stdout_holds_reports_alone(order, tmp_path):
    (tmp_path / "order.json").write_text(order.model_dump_json())
    ended = subprocess.run(
        [sys.executable, "-m", "services.evaluator.scoring", str(tmp_path / "order.json")],
        cwd=REPOSITORY,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    events = [json.loads(line)["event"] for line in ended.stdout.splitlines()]
    assert events == ["loaded", "prepared", "active", "progress", "done"]


def test_the_child_connects_to_nothing():
    code = (
        "import socket\n"
        "from services.evaluator.scoring.__main__ import refuse_network\n"
        "refuse_network()\n"
        "socket.create_connection(('127.0.0.1', 9), timeout=1)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert "PermissionError: scoring opens no connection" in ended.stderr
