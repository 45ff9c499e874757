"""The steps of a swap as a line, and what became of a generation."""

from typing import Any

import pytest

from schemas.deployment import DeploymentStep, ReplicaSteps, Swap
from services.gateway.deployments import Generation
from services.gateway.page.swaps import step_line
from tests.builders import NOON


def steps(number: int, **changes: float | None) -> ReplicaSteps:
    fields: dict[str, Any] = {
        "replica_id": f"serve-1-{number}",
        "fetch_seconds": 0.25,
        "load_seconds": 0.6,
        "read_back_seconds": 0.002,
        "probe_seconds": 0.04,
    }
    return ReplicaSteps(**fields | changes)


def swap(*replicas: ReplicaSteps) -> Swap:
    return Swap(replicas=replicas, route_seconds=0.007, total_seconds=2.0)


def generation(number: int = 2, **changes: Any) -> Generation:
    fields: dict[str, Any] = {
        "slot": "docs",
        "generation": number,
        "model_id": "mv-1",
        "digest": "5e" * 32,
        "approved_at": NOON,
        "ready_at": None,
        "failed_at": None,
        "withdrawn_at": None,
        "swap": None,
        "failed_step": None,
        "reason": "",
        "previous_digest": None,
    }
    return Generation(**fields | changes)


def line(**changes: Any) -> list[tuple[str, str, str]]:
    return [(each.name, each.text, each.state) for each in step_line(generation(**changes))]


class TestLine:
    def test_has_the_slowest_replicas_time_of_each_step(self):
        slow = steps(1, fetch_seconds=None, load_seconds=1.0, probe_seconds=0.03)
        assert line(swap=swap(steps(0), slow)) == [
            ("load", "1 s", "done"),
            ("read back", "2 ms", "done"),
            ("probe", "40 ms", "done"),
            ("route", "7 ms", "done"),
        ]

    def test_says_of_each_replica_what_the_load_was_made_of(self):
        slow = steps(1, fetch_seconds=None, load_seconds=1.0)
        load = step_line(generation(swap=swap(steps(0), slow)))[0]
        assert load.meaning.endswith(": serve-1-0 850 ms, of which 250 ms fetch; serve-1-1 1 s")

    def test_of_a_version_that_every_replica_had_is_the_route_alone(self):
        shown = line(swap=swap())
        assert shown[:3] == [(name, "–", "none") for name in ("load", "read back", "probe")]
        assert shown[3] == ("route", "7 ms", "done")

    @pytest.mark.parametrize(
        ("failed", "words"),
        [
            (DeploymentStep.LOAD, ["failed", "–", "–", "–"]),
            (DeploymentStep.READ_BACK, ["passed", "failed", "–", "–"]),
            (DeploymentStep.PROBE, ["passed", "passed", "failed", "–"]),
        ],
    )
    def test_marks_the_step_that_failed(self, failed, words):
        shown = line(failed_step=failed)
        assert [text for _, text, _ in shown] == words
        assert [state for _, text, state in shown if text == "failed"] == ["failed"]

    def test_is_none_where_nothing_is_known(self):
        assert step_line(None) == step_line(generation()) == ()


class TestStatus:
    @pytest.mark.parametrize(
        ("changes", "status"),
        [
            ({}, "pending"),
            ({"ready_at": NOON}, "ready"),
            ({"failed_at": NOON}, "failed"),
            ({"ready_at": NOON, "failed_at": NOON}, "failed"),
            ({"withdrawn_at": NOON}, "withdrawn"),
        ],
    )
    def test_is_what_became_of_it(self, changes, status):
        assert generation(**changes).status(newest=2) == status

    def test_of_one_that_a_later_one_replaced_before_it_was_ready(self):
        assert generation(2).status(newest=3) == "replaced"
        assert generation(2, ready_at=NOON).status(newest=3) == "ready"
