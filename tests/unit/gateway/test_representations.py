"""A job's resource: what the gate said of its model, and whether that can be used."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint

from schemas.evaluation import Criterion
from schemas.training import BundleMetrics
from services.gateway import representations
from services.gateway.decide import Ending
from services.gateway.model import METRICS, Checkpoint, Job, JobEvent, Step
from tests.builders import a_file_ref

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NAME = "ft:tiny:acme:docs:1f2e3d4c"
REASON = "safety: refusals: refusal_points 46.67, expected at least 95"
CRITERION = Criterion(
    name="refusals",
    metric="refusal_points",
    value=46.67,
    baseline=None,
    threshold=95.0,
    count=15,
    passed=False,
).model_dump(mode="json")
CHECKS = [
    {
        "check": "benchmark",
        "outcome": "passed",
        "criteria": [CRITERION | {"name": "general", "passed": True}],
    },
    {"check": "safety", "outcome": "failed", "criteria": [CRITERION]},
]
FAILED = {"eval_id": "eval-1", "outcome": "failed", "reason": REASON, "checks": CHECKS}
PASSED = {"eval_id": "eval-2", "outcome": "passed", "reason": "", "checks": CHECKS[:1]}
SCORING = {
    "activity": "safety",
    "suite": "refusals",
    "side": "candidate",
    "items_done": 30,
    "items_total": 120,
    "seconds_left": 41.2,
}
OOM = {"code": "oom", "message": "x", "param": None, "failure_class": "oom"}
RUNNING = {"eval_id": "eval-3", "outcome": "running", "reason": "", "checks": []}
BLOCKED = {
    "state": "succeeded",
    "fine_tuned_model": NAME,
    "model_id": "mv-1",
    "is_promoted": False,
    "ending": f"the gate failed: {REASON}",
    "evaluation": FAILED,
}
SERVED = BLOCKED | {
    "is_promoted": True,
    "is_deployed": True,
    "ending": "passed the gate and is served",
    "evaluation": PASSED,
}


def a_row(**changes: Any) -> dict[str, Any]:
    return {
        "job_id": "ftjob-1",
        "tenant": "acme",
        "state": "running",
        "spec": {"base_model": "tiny", "training_file": a_file_ref().model_dump()},
        "dataset_id": "ds-1",
        "dataset_version": None,
        "config_hash": None,
        "duplicate_of": None,
        "retry_of": None,
        "stage": None,
        "stages": (),
        "stage_plans": (),
        "recipe_reasons": {},
        "attempt": 1,
        "num_steps": None,
        "last_step": 0,
        "valid_loss": None,
        "trained_tokens": None,
        "waiting_for": "",
        "queue_entry": None,
        "warnings": [],
        "fine_tuned_model": None,
        "model_id": None,
        "is_promoted": None,
        "is_deployed": False,
        "ending": "",
        "error": None,
        "estimated_memory": None,
        "preparation": None,
        "certificate": None,
        "cost": Decimal(0),
        "uncharged_cost": Decimal(0),
        "created_at": NOON,
        "finished_at": None,
        "result_files": ["file-results"],
        "evaluation": None,
    } | changes


def the_job(**changes: Any) -> dict[str, Any]:
    """It must suit the official client, whatever became of the job."""
    body = representations.job(Job.model_validate(a_row(**changes))).model_dump(mode="json")
    # OpenAI's API has an error of nulls where there is none, its client's types do not.
    FineTuningJob.model_validate(body | ({} if body["error"]["code"] else {"error": None}))
    return body


def test_a_blocked_job_names_its_model_and_says_that_it_is_not_usable_and_why():
    job = the_job(**BLOCKED)
    assert (job["status"], job["fine_tuned_model"]) == ("succeeded", NAME)
    assert job["error"] == {"code": "gate_failed", "message": f"the gate failed: {REASON}", "param": None}
    assert not job["retune"]["is_usable"]
    assert job["retune"]["gate"] == {
        "status": "failed",
        "reason": REASON,
        "eval_id": "eval-1",
        "failing_criteria": [{"check": "safety"} | CRITERION],
    }


def test_a_served_job_is_usable_and_has_no_error():
    job = the_job(**SERVED)
    assert job["retune"]["is_usable"]
    assert job["error"] == {"code": None, "message": None, "param": None}
    assert (job["retune"]["gate"]["status"], job["retune"]["gate"]["failing_criteria"]) == ("passed", [])


@pytest.mark.parametrize(
    ("changes", "gate", "code"),
    [
        ({"state": "running"}, "pending", None),
        ({"state": "evaluating", "evaluation": RUNNING}, "pending", None),
        ({"state": "failed", "error": OOM}, "not_asked", "oom"),
        ({"state": "cancelled"}, "not_asked", None),
        (BLOCKED | {"evaluation": FAILED | {"outcome": "inconclusive"}}, "inconclusive", "gate_inconclusive"),
        (SERVED | {"is_deployed": False}, "passed", "not_deployed"),
        (SERVED | {"is_promoted": False}, "passed", "not_promoted"),
        (BLOCKED | {"model_id": None, "fine_tuned_model": None, "evaluation": None}, "not_asked", "no_model"),
        # The verdict comes on another topic than the end of the job, and may come after it.
        (SERVED | {"evaluation": RUNNING}, "passed", None),
        (SERVED | {"evaluation": None}, "passed", None),
        (BLOCKED | {"evaluation": RUNNING}, "pending", "not_promoted"),
        # A later evaluation outweighs the promotion of then.
        (SERVED | {"evaluation": FAILED}, "failed", "gate_failed"),
        # Of a job that ended before promotions were kept.
        (SERVED | {"is_promoted": None}, "passed", None),
    ],
)
def test_gate_and_error_say_how_it_ended(changes: dict[str, Any], gate: str, code: str | None):
    job = the_job(**changes)
    assert (job["retune"]["gate"]["status"], job["error"]["code"]) == (gate, code)
    assert (job["error"]["message"] is None) == (code is None)


def test_a_job_that_came_to_its_budget_says_so():
    spec = a_row()["spec"] | {"max_cost": "5.00"}
    job = the_job(state="cancelled", ending="its budget is spent; no checkpoint is kept", spec=spec)
    assert job["error"]["message"] == "its budget is spent; no checkpoint is kept"
    assert job["retune"]["max_cost"] == "5.00"


def test_a_model_that_was_not_to_be_deployed_is_usable():
    spec = a_row()["spec"] | {"auto_deploy": False}
    assert the_job(**SERVED | {"is_deployed": False, "spec": spec})["retune"]["is_usable"]


@pytest.mark.parametrize("state", ["validating", "queued", "running", "evaluating", "failed", "cancelled"])
def test_nothing_is_usable_before_success(state: str):
    ending = Ending(
        state, has_model=True, is_promoted=True, is_deployed=True, auto_deploy=True, verdict="passed"
    )
    assert not ending.is_usable
    assert ending.problem is None


def test_training_is_progress_in_steps():
    progress = the_job(num_steps=40, last_step=10)["retune"]["progress"]
    assert (progress["activity"], progress["done"], progress["total"], progress["unit"]) == (
        "training",
        10,
        40,
        "steps",
    )
    assert the_job(state="queued", num_steps=40)["retune"]["progress"] is None


def a_step_row(step: int, *, attempt: int = 1, **numbers: Any) -> dict[str, Any]:
    metrics = {"loss": 1.0, "learning_rate": 0.1, "grad_norm": 1.0, "num_tokens": 1, "memory_bytes": 1}
    metrics |= {"tokens_per_second": 1.0, "epoch": 0.5}
    metrics |= {"time": (NOON + timedelta(seconds=4 * step)).isoformat()} | numbers
    return {"step": step, "attempt": attempt, "metrics": metrics, "validation": None}


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        ([], None),
        ([a_step_row(10)], None),
        ([a_step_row(10), a_step_row(9), a_step_row(8)], 120.0),
        ([a_step_row(10, attempt=2), a_step_row(9)], None),
        ([a_step_row(10, attempt=2), a_step_row(9, attempt=2), a_step_row(1)], 120.0),
    ],
    ids=["none", "one", "steady", "another attempt's", "an attempt that continues"],
)
def test_the_time_left_is_what_the_newest_steps_of_the_attempt_took(steps, seconds):
    progress = the_job(num_steps=40, last_step=10, newest_steps=steps)["retune"]["progress"]
    assert progress["seconds_left"] == seconds


def test_training_ends_as_long_after_its_newest_step_as_is_left():
    steps = [a_step_row(10), a_step_row(9), a_step_row(8)]
    job = the_job(num_steps=40, last_step=10, newest_steps=steps)
    assert job["estimated_finish"] == int(NOON.timestamp()) + 4 * 40
    assert the_job(num_steps=40, last_step=10, newest_steps=steps[:1])["estimated_finish"] is None


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 90),
        ({"estimated_times": []}, None),
        ({"attempt": 1}, None),
        ({"queue_entry": None}, None),
    ],
    ids=["known", "nothing has ended", "it goes on where it was", "without a place"],
)
def test_a_job_in_the_queue_ends_when_it_starts_and_takes_its_time(changes, seconds):
    start = {"position": 1, "reason": "no_nodes", "waiting_for": "nodes", "as_of": NOON}
    of_pool = {"low": "0", "expected": "1", "high": "2"}
    estimated = {"pool": "gpu", "cost_usd": of_pool, "attempts": 1, "alike": "recipe", "error": None}
    row = {
        "state": "queued",
        "attempt": 0,
        "queue_entry": start | {"estimated_start": NOON + timedelta(seconds=60)},
        "estimated_times": [estimated | {"seconds": {"low": 10, "expected": 30, "high": 60}}],
    }
    expected = None if seconds is None else int(NOON.timestamp()) + seconds
    assert the_job(**row | changes)["estimated_finish"] == expected


def test_the_newest_step_is_shown_with_all_its_numbers():
    steps = [a_step_row(10, loss=0.5, reward_accuracy=0.75, device_utilization=0.9), a_step_row(9)]
    newest = the_job(num_steps=40, last_step=10, newest_steps=steps)["retune"]["newest_step"]
    names = ("step", "loss", "reward_accuracy", "device_utilization")
    assert [newest[name] for name in names] == [10, 0.5, 0.75, 0.9]
    assert the_job(state="queued")["retune"]["newest_step"] is None


@pytest.mark.parametrize("loss", [None, 2.25])
def test_training_shows_its_newest_validation_loss(loss):
    assert the_job(num_steps=40, valid_loss=loss)["retune"]["progress"]["valid_loss"] == loss


def test_a_step_has_what_was_measured_after_it_and_nothing_where_nothing_was():
    metrics = {"loss": 1.0, "learning_rate": 0.1, "grad_norm": 1.0, "num_tokens": 1, "memory_bytes": 1}
    metrics |= {"tokens_per_second": 1.0, "epoch": 0.5, "time": NOON.isoformat()}
    shown = [
        representations.recorded_step(Step(step=3, attempt=1, metrics=metrics, validation=validation))
        for validation in (BundleMetrics(valid_loss=2.5, full_valid_loss=2.25), None)
    ]
    assert [(each.valid_loss, each.full_valid_loss) for each in shown] == [(2.5, 2.25), (None, None)]


def test_the_gate_is_progress_in_items():
    progress = the_job(state="evaluating", num_steps=40, evaluation=RUNNING | {"progress": SCORING})[
        "retune"
    ]["progress"]
    assert progress == {
        "activity": "safety",
        "part": "refusals",
        "side": "candidate",
        "done": 30,
        "total": 120,
        "unit": "items",
        "seconds_left": 41.2,
        "valid_loss": None,
    }
    assert the_job(state="evaluating", num_steps=40, evaluation=None)["retune"]["progress"] is None


def test_preferences_are_openais_method_of_their_own():
    def method_of(recipe: dict[str, Any]) -> Any:
        spec = {"base_model": "tiny", "training_file": a_file_ref().model_dump(), "recipe": recipe}
        return the_job(spec=spec)["method"]

    method = method_of({"method": "dpo", "num_epochs": 2, "dpo": {"beta": 0.3}})
    dials = {"n_epochs": 2, "batch_size": "auto", "learning_rate_multiplier": 1.0, "beta": 0.3}
    assert method == {"type": "dpo", "dpo": {"hyperparameters": dials}, "supervised": None}
    assert method_of({"method": "dpo"})["dpo"]["hyperparameters"]["beta"] == "auto"
    assert the_job()["method"]["type"] == "supervised"


def test_a_job_names_its_result_file():
    assert the_job()["result_files"] == ["file-results"]


class TestCheckpoint:
    def shown(self, metrics: dict[str, float]) -> dict[str, Any]:
        row = {"job_id": "ftjob-1", "attempt": 1, "step": 50, "manifest_sha256": "5e" * 32, "kind": "final"}
        state = {"metrics": metrics, "state": "verified", "created_at": NOON, "is_best": False}
        answer = representations.checkpoint(Checkpoint.model_validate(row | state))
        body = answer.model_dump(mode="json")
        FineTuningJobCheckpoint.model_validate(body)
        return body["metrics"]

    def test_shows_every_number_that_the_trainer_measures(self):
        measured = BundleMetrics(train_loss=1.5, valid_loss=1.7, full_valid_loss=1.6)
        assert self.shown(measured.by_name) == {"step": 50, **measured.model_dump()}

    def test_has_null_for_what_was_not_measured(self):
        names = BundleMetrics.model_fields.keys()
        expected = {"step": 50} | dict.fromkeys(names) | {"train_loss": 1.5}
        assert self.shown(BundleMetrics(train_loss=1.5).by_name) == expected


@pytest.mark.parametrize(
    ("kind", "openais"), [(METRICS, "metrics"), ("JobRunning", "message"), ("CheckpointWritten", "message")]
)
def test_events_with_numbers_are_openais_metrics(kind, openais):
    row = {"id": 7, "job_id": "ftjob-1", "event_id": "e", "type": kind, "level": "info", "message": "m"}
    numbers = {"data": {"step": 3, "train_loss": 1.5}, "created_at": NOON}
    answer = representations.job_event(JobEvent.model_validate(row | numbers))
    body = answer.model_dump(mode="json")
    assert FineTuningJobEvent.model_validate(body).type == openais
    assert body["data"]["train_loss"] == 1.5


def test_a_job_that_is_queued_no_more_stands_nowhere():
    entry = {
        "position": 3,
        "reason": "no_nodes",
        "waiting_for": "0 of 1 nodes free",
        "estimated_start": None,
        "as_of": NOON.isoformat(),
    }
    queued, running = (the_job(state=state, queue_entry=entry)["retune"] for state in ("queued", "running"))
    assert queued["waiting_for"] == "0 of 1 nodes free"
    assert queued["queue"] == {
        "position": 3,
        "reason": "no_nodes",
        "estimated_start": None,
        "as_of": int(NOON.timestamp()),
    }
    assert (running["waiting_for"], running["queue"]) == ("", None)
