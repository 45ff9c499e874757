"""What an evaluation's node may do, and what is believed of what it says."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from schemas import layout
from schemas.base import DeviceKind
from schemas.object_requests import ObjectRequest
from services.evaluator.decide import nodes
from services.evaluator.model import ScoringNode
from services.evaluator.protocol import MAX_OUTCOME_BYTES, Outcome, ScoringReport, StoredOutcome, Work
from services.evaluator.scoring.order import (
    Candidate,
    Failure,
    HoldoutPart,
    ItemScore,
    Limits,
    PartScores,
    Probe,
    SafetyPart,
    Scores,
    Side,
    WorkOrder,
)
from services.evaluator.scoring.reports import Loaded, PartProgressed
from shared.device_leases.lease import HeldLease, LeaseState
from tests.builders import NOON, a_sha
from tests.unit.evaluator.evaluations import a_file

BASE, MODEL = a_sha("base"), a_sha("model")
HOLDOUT, SUITE = a_file("holdout"), a_file("suite")
ORDER = WorkOrder(
    base_path=f"base-models/{BASE}",
    template_sha256=a_sha("template"),
    candidate=Candidate(kind="adapter", path=f"models/{MODEL}", rank=8),
    parts=(
        HoldoutPart(name="holdout", path=layout.blob(HOLDOUT.sha256), sides=(Side.BASE, Side.CANDIDATE)),
        SafetyPart(name="safety:theft", path=layout.blob(SUITE.sha256), sides=(Side.CANDIDATE,)),
    ),
    device_name="H100",
)
WORK = Work(
    eval_id="eval-1",
    order=ORDER,
    files=(HOLDOUT, SUITE),
    threads=None,
    silence_seconds=900.0,
    limit_seconds=14400.0,
)
NODE = ScoringNode("eval-1", WORK)
KEYS = {"holdout": ["0000001-aa", "0000002-bb"], "safety:theft": ["0000001-cc"]}
LEASE = HeldLease("scoring-eval-1", "lease-1", LeaseState.HELD, device=DeviceKind.CPU, until=NOON)


def part(name: str, side: Side, **changes: Any) -> PartScores:
    numbers = {"hits": 1.0} if name == "holdout" else {}
    items = tuple(ItemScore(key=key, answer="alpha", numbers=numbers) for key in KEYS[name])
    scored = PartScores(part=name, side=side, expected=len(items), items=items, seconds=1.0)
    return scored.model_copy(update=changes)


PARTS = (part("holdout", Side.BASE), part("holdout", Side.CANDIDATE), part("safety:theft", Side.CANDIDATE))
SCORES = Scores(
    harness_version=ORDER.harness_version,
    probe=Probe(max_logit_change=0.5, nonzero_tensors=1, num_tensors=1),
    parts=PARTS,
)
OUTCOME = Outcome(order_sha256=ORDER.sha256, scores=SCORES)


def with_item(**changes: Any) -> Scores:
    """Scores with another first item of the holdout."""
    first, *others = PARTS[0].items
    items = (first.model_copy(update=changes), *others)
    return SCORES.model_copy(update={"parts": (part("holdout", Side.BASE, items=items), *PARTS[1:])})


def why_not(scores: Scores) -> str:
    return nodes.why_not_believed(ORDER, OUTCOME.model_copy(update={"scores": scores}), KEYS)


class TestOutcome:
    def test_is_believed_where_every_row_is_scored_on_every_side_asked_for(self):
        assert nodes.why_not_believed(ORDER, OUTCOME, KEYS) == ""
        assert nodes.why_not_believed(ORDER, Outcome(order_sha256=ORDER.sha256, crash="oom"), KEYS) == ""

    def test_is_believed_with_what_rounding_and_unlikely_texts_give(self):
        assert why_not(with_item(numbers={"hits": 3.0, "tokens": 4.0, "nats": float("inf")})) == ""
        assert why_not(with_item(numbers={"nats": -1e-6, "tokens": 4.0})) == ""

    def test_is_a_failure_that_no_second_try_changes(self):
        failed = SCORES.model_copy(
            update={"failure": Failure(code="malformed_rows", message="line 1"), "parts": (), "probe": None}
        )
        assert why_not(failed) == ""
        assert why_not(failed.model_copy(update={"parts": PARTS})) == "scores beside a failure"

    def test_is_refused_of_another_order_or_of_nothing(self):
        other = OUTCOME.model_copy(update={"order_sha256": a_sha("other")})
        assert nodes.why_not_believed(ORDER, other, KEYS).startswith("they are of order")
        nothing = Outcome(order_sha256=ORDER.sha256)
        assert nodes.why_not_believed(ORDER, nothing, KEYS) == "there are neither scores nor a reason"

    @pytest.mark.parametrize(
        ("scores", "reason"),
        [
            (SCORES.model_copy(update={"harness_version": "x"}), "their harness is 'x'"),
            (SCORES.model_copy(update={"parts": PARTS[1:]}), "parts are [('holdout', 'candidate')"),
            (SCORES.model_copy(update={"parts": (*PARTS, PARTS[0])}), "parts are"),
            (SCORES.model_copy(update={"probe": None}), "no probe"),
            (
                SCORES.model_copy(
                    update={"probe": Probe(max_logit_change=float("nan"), nonzero_tensors=1, num_tensors=1)}
                ),
                "not finite",
            ),
            (with_item(key="0000009-zz"), "2 items that are not the 2 rows of its file, in order"),
            (with_item(numbers={"hits": 2.0}), "hits is 2.0"),
            (with_item(numbers={"hits": -0.5}), "hits is -0.5"),
            (with_item(numbers={"hits": float("nan")}), "hits is nan"),
            (with_item(numbers={"hits": 5.0, "tokens": 4.0}), "hits is 5.0"),
            (with_item(numbers={"nats": -7.0}), "nats is -7.0"),
            (with_item(answer="x" * 100_000), "an answer of 100000 characters"),
            (
                SCORES.model_copy(update={"parts": (part("holdout", Side.BASE, engine="vllm"), *PARTS[1:])}),
                "by an engine",
            ),
            (
                SCORES.model_copy(update={"parts": (part("holdout", Side.BASE, expected=1), *PARTS[1:])}),
                "in order",
            ),
            (
                SCORES.model_copy(update={"parts": (part("holdout", Side.BASE, items=()), *PARTS[1:])}),
                "0 items",
            ),
        ],
    )
    def test_is_refused_where_it_cannot_be(self, scores: Scores, reason: str):
        assert reason in why_not(scores)


class TestObjects:
    @pytest.mark.parametrize(
        ("operation", "key", "is_allowed"),
        [
            ("get", layout.base_model(BASE), True),
            ("head", layout.model(MODEL, "files/x"), True),
            ("get", layout.blob(HOLDOUT.sha256), True),
            ("get", layout.base_model(MODEL), False),
            ("get", layout.base_model(BASE, "../x"), False),
            ("get", layout.blob(a_sha("other")), False),
            ("list", layout.base_model(BASE, ""), False),
            ("get", layout.evaluation("eval-1", "log.txt"), False),
            ("get", layout.evaluation_outcome("eval-1", "lease-1"), False),
            ("head", layout.evaluation_outcome("eval-1", "lease-1"), True),
            ("head", layout.evaluation_outcome("eval-2", "lease-1"), False),
        ],
    )
    def test_that_a_node_reads_are_those_of_its_order(self, operation: str, key: str, is_allowed: bool):
        asked = ObjectRequest(operation=operation, key=key)
        assert (nodes.why_not_allowed(asked, NODE, "lease-1") == "") is is_allowed

    @pytest.mark.parametrize(
        ("changes", "is_allowed"),
        [
            ({}, True),
            ({"key": layout.evaluation_outcome("eval-1", "lease-2")}, False),
            ({"key": layout.evaluation_outcome("eval-2", "lease-1")}, False),
            ({"key": layout.blob(HOLDOUT.sha256)}, False),
            ({"size_bytes": MAX_OUTCOME_BYTES + 1}, False),
            ({"sha256": None}, False),
            ({"operation": "start_upload"}, False),
            ({"operation": "put_part", "part": 1, "upload_id": "u"}, False),
        ],
    )
    def test_that_a_node_writes_are_its_outcome(self, changes: dict[str, Any], is_allowed: bool):
        key = layout.evaluation_outcome("eval-1", "lease-1")
        outcome = {"operation": "put", "key": key, "sha256": "0" * 64, "size_bytes": MAX_OUTCOME_BYTES}
        asked = ObjectRequest(**outcome | changes)
        assert (nodes.why_not_allowed(asked, NODE, "lease-1") == "") is is_allowed

    def test_are_none_where_nothing_is_to_be_scored(self):
        asked = ObjectRequest(operation="get", key=layout.base_model(BASE))
        assert nodes.why_not_allowed(asked, None, "lease-1").endswith("expected to read below nothing")


class TestReports:
    def test_are_handed_on_once_and_of_no_part_that_was_not_asked_for(self):
        first = PartProgressed(part="holdout", side=Side.BASE, done=1, total=2)
        second = first.model_copy(update={"done": 2})
        other = first.model_copy(update={"part": "a word for people"})
        assert nodes.news(ORDER, (), (Loaded(device="cpu"), first, other)) == (Loaded(device="cpu"), first)
        assert nodes.news(ORDER, (Loaded(device="cpu"), first), (Loaded(device="cpu"), second)) == (second,)


class TestANode:
    @pytest.mark.parametrize(
        ("lease", "reason"),
        [
            (replace(LEASE, until=NOON + timedelta(seconds=1)), ""),
            (None, "its lease was given back"),
            (replace(LEASE, state=LeaseState.REFUSED, reason="node r-1 was lost"), "node r-1 was lost"),
            (replace(LEASE, state=LeaseState.ENDED), "its lease is ended"),
            (LEASE, "its lease was not confirmed in time"),
        ],
    )
    def test_is_lost_with_its_lease(self, lease: HeldLease | None, reason: str):
        assert nodes.why_lost(lease, now=NOON) == reason

    def test_of_another_product_is_unfit(self):
        own = Limits(device_name="H200")
        assert nodes.why_unfit(ORDER, Limits(device_name="H100")) == ""
        assert "cpu (H200)" in nodes.why_unfit(ORDER, own)
        assert "cpu (H100)" in nodes.why_unfit(ORDER, own)

    def test_has_an_outcome_of_the_work_that_it_has_now_alone(self):
        stored = StoredOutcome(sha256="0" * 64, size_bytes=1)
        report = ScoringReport(
            lease_id="l", node_id="n", time=NOON, order_sha256=ORDER.sha256, outcome=stored
        )
        assert replace(NODE, report=report).outcome == stored
        other = report.model_copy(update={"order_sha256": a_sha("another order")})
        assert replace(NODE, report=other).outcome is None
        assert NODE.outcome is None

    def test_is_of_the_evaluation_that_its_lease_is_for(self):
        assert nodes.eval_id_of(nodes.subject_of("eval-1")) == "eval-1"


def test_an_order_has_other_paths_where_it_is_carried_out(tmp_path):
    paths = {path: tmp_path / str(number) for number, path in enumerate(map(str, ORDER.inputs))}
    placed = ORDER.at(paths)
    assert [*placed.inputs] == [*paths.values()]
    assert placed.model_copy(update={"parts": ()}) != ORDER.model_copy(update={"parts": ()})
    assert placed.harness_version == ORDER.harness_version
