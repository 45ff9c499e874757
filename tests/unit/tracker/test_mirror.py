"""What each fact about a job adds to its run in MLflow."""

import math
from dataclasses import replace
from decimal import Decimal

import pytest

from schemas.base import FailureClass, TrialOf
from schemas.job import JobCancelled, JobFailed, JobPaused, JobStage, JobStageCompleted, PauseReason
from schemas.model import ModelArchived, ModelDemoted
from schemas.specification import LoraSpec
from schemas.sweep import SweepEnded, SweepState, SweepSubmitted, TrialEnded
from services.tracker.decide.mirror import (
    LONGEST_VALUE,
    Entry,
    Measured,
    Mirrored,
    Run,
    RunStatus,
    add,
    joined,
    subject_of,
    without_logged,
)
from tests.builders import NOON, TENANT, a_dataset_ref, a_sha
from tests.unit.tracker.mirror_world import (
    JOB_ID,
    RECIPE,
    evaluating,
    not_passed,
    passed,
    promoted,
    recorded,
    registered,
    requeued,
    scheduled,
    succeeded,
    written,
)
from tests.unit.tracker.sweep_world import a_sweep_spec

NEW = Run(JOB_ID, TENANT)
OF_MODEL = {
    "model_id": "mv-1",
    "tenant": TENANT,
    "job_id": JOB_ID,
    "digest": a_sha("model"),
    "full_name": f"ft:tiny:{TENANT}::abc",
}
OF_JOB = {"job_id": JOB_ID, "tenant": TENANT}


def entry_of(fact: Mirrored, run: Run = NEW) -> Entry:
    return add(run, fact, now=NOON)[1]


def test_an_attempt_has_the_recipe_by_paths_of_its_fields():
    entry = entry_of(scheduled())
    assert entry.parameters["base_model"] == "tiny"
    assert entry.parameters["method"] == "lora"
    assert entry.parameters["lora.rank"] == "4"
    assert entry.parameters["learning_rate"] == "0.0003"
    assert entry.parameters["packing"] == "true"
    assert not {name for name, value in entry.parameters.items() if value == "null"}
    assert entry.tags["retune.pool"] == "cpu-spot"
    assert entry.tags["retune.dataset_version"] == a_dataset_ref().version
    assert entry.tags["retune.config_hash"] == a_sha("config")
    assert entry.datasets == (a_dataset_ref(),)
    assert entry.status is RunStatus.RUNNING


def test_what_a_person_wrote_of_the_job_is_a_tag_in_no_others_place():
    written = {"team": "search", "a/b\n": "c", "retune.id": "ftjob-other", "mlflow.parentRunId": "x"}
    tags = entry_of(scheduled(metadata=written)).tags
    assert (tags["metadata.team"], tags["metadata.a/b_"]) == ("search", "c")
    assert not {"retune.id", "mlflow.parentRunId", "team"} & tags.keys()


def test_a_parameter_is_logged_once_even_where_a_later_attempt_has_another_value():
    run, _ = add(NEW, scheduled(), now=NOON)
    smaller = RECIPE.model_copy(update={"micro_batch_size": 2, "decay_ratio": 0.2})
    _, entry = add(run, scheduled(attempt=2, resumed_at=20, recipe=smaller), now=NOON)
    assert entry.parameters == {"decay_ratio": "0.2"}
    assert entry.tags["retune.attempt"] == "2"
    assert entry.tags["retune.resumed_at_step"] == "20"


def test_a_later_stage_has_a_recipe_of_its_own():
    stage = JobStage(number=2, num_stages=2, first_attempt=2, steps_before=40)
    fact = scheduled(attempt=2, recipe=RECIPE.model_copy(update={"lora": LoraSpec(rank=16)}))
    entry = entry_of(fact.model_copy(update={"stage": stage}), add(NEW, scheduled(), now=NOON)[0])
    assert entry.parameters["stage_2.lora.rank"] == "16"
    assert "lora.rank" not in entry.parameters
    assert "base_model" not in entry.parameters
    assert entry.tags["retune.training_stage"] == "2 of 2"


def test_a_trial_names_its_sweep():
    tags = entry_of(scheduled(trial=TrialOf(sweep_id="sweep-1", number=3))).tags
    assert (tags["retune.sweep_id"], tags["retune.trial"]) == ("sweep-1", "3")


def test_a_trial_is_below_its_sweep():
    run, _ = add(NEW, scheduled(trial=TrialOf(sweep_id="sweep-1", number=3)), now=NOON)
    assert run.parent_id == "sweep-1"
    assert add(run, recorded([1]), now=NOON)[0].parent_id == "sweep-1"


def test_a_sweep_has_what_it_searches_and_the_loss_of_each_trial():
    of_sweep = {"sweep_id": "sweep-1", "tenant": TENANT}
    spec = a_sweep_spec()
    begun = SweepSubmitted(**of_sweep, dataset_id="ds-1", spec=spec, submitted_at=NOON)
    trial = {**of_sweep, "number": 2, "job_id": "ftjob-trial"}
    ended = SweepEnded(
        **of_sweep, state=SweepState.SUCCEEDED, best=2, best_valid_loss=1.5, num_trials=8, cost=Decimal("3.5"), message="done"
    )  # fmt: skip
    assert {
        subject_of(each) for each in (begun, TrialEnded(**trial, state="completed", valid_loss=1.5), ended)
    } == {"sweep-1"}
    entry = entry_of(begun)
    assert (entry.parameters["base_model"], entry.parameters["num_trials"]) == ("tiny", "8")
    assert entry.parameters["parameters.lora.rank.choices"] == "[4, 8, 16]"
    assert not [name for name in entry.parameters if name.startswith("job.")]
    assert entry_of(TrialEnded(**trial, state="completed", valid_loss=1.5)).measured == (
        Measured(2, NOON, {"trial.valid_loss": 1.5}),
    )
    assert entry_of(TrialEnded(**trial, state="failed", valid_loss=None)) == Entry()
    over = entry_of(ended)
    assert (over.status, over.ended_at, over.tags["retune.best_trial"]) == (RunStatus.FINISHED, NOON, "2")
    assert over.tags["retune.cost_usd"] == "3.5"


def test_each_step_is_taken_up_once_however_often_it_is_trained():
    run, first = add(NEW, recorded(range(1, 31)), now=NOON)
    run, second = add(run, recorded(range(21, 41), attempt=2), now=NOON)
    assert [each.step for each in first.measured] == list(range(1, 31))
    assert [each.step for each in second.measured] == list(range(31, 41))
    assert second.measured[0].values["loss"] == pytest.approx(2.31)
    assert run.last_step == 40
    assert add(run, recorded(range(21, 41), attempt=2), now=NOON) == (run, Entry())


def test_a_step_keeps_its_own_time():
    batch = recorded([7])
    assert entry_of(batch).measured[0].time == batch.steps[0].time


def test_validations_and_bundles_are_of_weights_without_what_steps_have():
    assert entry_of(recorded([], validated=[10])).of_weights == (
        Measured(10, NOON, {"full_valid_loss": 1.0}),
    )
    bundle = entry_of(written(20, train_loss=1.0, valid_loss=2.0, reward_margin=0.5))
    assert bundle.of_weights == (Measured(20, NOON, {"valid_loss": 2.0, "valid_reward_margin": 0.5}),)


def test_only_new_points_of_weights_are_kept():
    entry = Entry(
        measured=(Measured(1, NOON, {"loss": 1.0}),),
        of_weights=(
            Measured(10, NOON, {"valid_loss": 2.0, "perplexity": 7.0}),
            Measured(20, NOON, {"valid_loss": 1.0}),
        ),
    )
    kept = without_logged(entry, {("perplexity", 10), ("valid_loss", 30)})
    assert kept.measured == (Measured(1, NOON, {"loss": 1.0}), Measured(10, NOON, {"perplexity": 7.0}))
    assert kept.of_weights == ()


def test_a_loss_that_is_no_number_is_kept():
    batch = recorded([1])
    step = batch.steps[0].model_copy(update={"loss": math.nan})
    values = entry_of(batch.model_copy(update={"steps": (step,)})).measured[0].values
    assert math.isnan(values["loss"])


@pytest.mark.parametrize(
    ("fact", "status", "tags"),
    [
        (
            requeued(),
            RunStatus.SCHEDULED,
            {"state": "queued", "requeued": "preempted: the node was taken away"},
        ),
        (
            JobPaused(**OF_JOB, attempt=1, reason=PauseReason.USER, resume=None),
            RunStatus.SCHEDULED,
            {"state": "paused"},
        ),
        (
            JobStageCompleted(**OF_JOB, attempt=1, stage=JobStage(number=2, num_stages=2)),
            RunStatus.SCHEDULED,
            {"state": "queued"},
        ),
        (evaluating(), None, {"state": "evaluating"}),
        (succeeded(), RunStatus.FINISHED, {"state": "succeeded", "deployed": "true"}),
        (
            JobFailed(**OF_JOB, failure_class=FailureClass.OOM, code="oom", message="too large"),
            RunStatus.FAILED,
            {"state": "failed", "error": "oom: too large"},
        ),
        (
            JobCancelled(**OF_JOB, reason="budget", artifact=None),
            RunStatus.KILLED,
            {"state": "cancelled", "cancelled_by": "budget"},
        ),
    ],
)
def test_the_state_of_a_job_is_that_of_its_run(
    fact: Mirrored, status: RunStatus | None, tags: dict[str, str]
):
    entry = entry_of(fact)
    assert entry.status is status
    assert entry.tags == {f"retune.{name}": value for name, value in tags.items()}
    is_over = status in (RunStatus.FINISHED, RunStatus.FAILED, RunStatus.KILLED)
    assert (entry.ended_at == NOON) is is_over


def test_a_verdict_has_its_numbers_beside_those_of_the_base():
    entry = entry_of(not_passed(number=2))
    assert entry.measured == (
        Measured(
            2, NOON, {"retune.gate.held out rows.loss": 1.25, "retune.gate.held out rows.loss.base": 2.5}
        ),
    )
    assert entry.tags["retune.gate"] == "failed"
    assert entry.tags["retune.gate_reason"] == "worse than the base"
    assert entry.tags["retune.gate_checks"] == '{"holdout": "failed"}'


def test_a_pass_takes_the_reason_of_an_earlier_failure_away():
    tags = joined([entry_of(not_passed()), entry_of(passed(number=2))]).tags
    assert (tags["retune.gate"], tags["retune.gate_reason"]) == ("passed", "")


@pytest.mark.parametrize(
    ("fact", "stage"),
    [
        (registered(), "dev"),
        (promoted(), "staging"),
        (ModelDemoted(**OF_MODEL, eval_id="eval-2", reason="worse"), "dev"),
        (ModelArchived(**OF_MODEL), "archived"),
    ],
)
def test_a_version_and_its_stage_are_tags(fact: Mirrored, stage: str):
    tags = entry_of(fact).tags
    assert tags["retune.model"] == f"ft:tiny:{TENANT}::abc"
    assert tags["retune.model_digest"] == a_sha("model")
    assert tags["retune.model_stage"] == stage


def test_a_value_that_is_too_long_is_cut():
    error = JobFailed(**OF_JOB, failure_class=FailureClass.USER, code="data", message="x" * 9_000)
    value = entry_of(error).tags["retune.error"]
    assert len(value) == LONGEST_VALUE
    assert value.endswith("x…")


def test_entries_together_end_as_the_last_of_them():
    entries = [
        entry_of(each)
        for each in (scheduled(), recorded([1, 2]), requeued(), scheduled(attempt=2), succeeded())
    ]
    together = joined(entries)
    assert [each.step for each in together.measured] == [1, 2]
    assert together.datasets == (a_dataset_ref(),)
    assert (together.status, together.ended_at) == (RunStatus.FINISHED, NOON)
    assert together.tags["retune.state"] == "succeeded"
    running = joined([succeeded_then := entry_of(succeeded()), entry_of(scheduled(attempt=3))])
    assert succeeded_then.ended_at == NOON
    assert (running.status, running.ended_at) == (RunStatus.RUNNING, None)


def test_nothing_joined_is_nothing():
    assert joined([]) == Entry()
    assert add(replace(NEW, last_step=5), recorded([5]), now=NOON)[1] == Entry()
