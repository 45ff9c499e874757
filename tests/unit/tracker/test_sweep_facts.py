"""What a sweep publishes of itself and its trials, fact by fact, and what it keeps of them."""

from dataclasses import replace
from decimal import Decimal

import pytest

from schemas.identity import config_hash
from schemas.job import CancelJob, SubmitJob
from schemas.specification import Recipe
from schemas.sweep import (
    PruningSpec,
    StopCause,
    SubmitSweep,
    SweepEnded,
    SweepState,
    SweepStopping,
    SweepSubmitted,
    TrialEnded,
    TrialState,
    TrialSubmitted,
    with_parameters,
)
from services.tracker.decide import sweeps
from services.tracker.decide.sweeps import Decision, Sweep
from services.tracker.decide.trial import Trial, job_id_of
from tests.builders import NOON, TENANT, a_file_ref, a_job_spec
from tests.unit.tracker.sweep_world import (
    RANKS,
    SWEEP_ID,
    World,
    a_sweep_spec,
    cancelled,
    evaluating,
    queued,
    succeeded,
    written,
)

OF_SWEEP = {"sweep_id": SWEEP_ID, "tenant": TENANT}


def a_trial(number: int, state: TrialState, valid_loss: float | None = None, **changes: object) -> Trial:
    fields = {"valid_loss": valid_loss, "is_open": state is TrialState.RUNNING, **changes}
    return Trial(SWEEP_ID, number, f"ftjob-{number}", {}, str(number), state, **fields)


def test_a_sweep_that_is_taken_is_published_as_it_came():
    spec = a_sweep_spec()
    command = SubmitSweep(sweep_id=SWEEP_ID, tenant=TENANT, dataset_id="ds-1", spec=spec)
    decision = sweeps.submit(command, None, now=NOON)
    assert decision.sweep == Sweep(SWEEP_ID, TENANT, "ds-1", spec)
    assert decision.messages == (SweepSubmitted(**OF_SWEEP, dataset_id="ds-1", spec=spec, submitted_at=NOON),)


def test_the_job_of_a_trial_has_the_same_id_in_every_version():
    assert job_id_of("sweep-1", 0) == "ftjob-294517decbb0407b"


def test_a_trial_is_published_with_its_values_and_the_hash_of_its_configuration():
    sweep, parameters = Sweep(SWEEP_ID, TENANT, "ds-1", a_sweep_spec()), {"lora.rank": 8}
    digest = config_hash(with_parameters(sweep.spec.job, parameters), "ds-1")
    fields = {"number": 3, "job_id": job_id_of(SWEEP_ID, 3), "parameters": parameters, "config_hash": digest}
    decision = sweeps.begin(sweep, 3, parameters, [])
    assert decision.trials == (Trial(SWEEP_ID, **fields),)
    assert decision.messages[0] == TrialSubmitted(**OF_SWEEP, **fields)
    twin = replace(decision.trials[0], number=1)
    twice = sweeps.begin(sweep, 3, parameters, [twin])
    assert twice.messages == (
        TrialSubmitted(**OF_SWEEP, **fields, duplicate_of=1),
        TrialEnded(
            **OF_SWEEP,
            number=3,
            job_id=job_id_of(SWEEP_ID, 3),
            state=TrialState.DUPLICATE,
            valid_loss=None,
            message="the configuration of trial 1",
        ),
    )


class TestEnds:
    def hear(self, *news: object, **changes: object) -> tuple[TrialEnded, Trial]:
        world = World(a_sweep_spec(concurrency=1, num_trials=2, **changes))
        for each in news:
            world.hear(each(world.of(SubmitJob)[-1]))
        ended, trial = world.of(TrialEnded)[-1], world.trials[world.of(TrialEnded)[-1].number]
        assert (trial.state, trial.valid_loss, trial.message) == (
            ended.state,
            ended.valid_loss,
            ended.message,
        )
        assert ended.job_id == trial.job_id
        return ended.state, ended.valid_loss, ended.message

    def test_trained(self):
        ended = self.hear(lambda job: written(job.job_id, 100, 1.5), evaluating)
        assert ended == (TrialState.COMPLETED, 1.5, "")

    def test_trained_and_never_measured(self):
        ended = self.hear(lambda job: written(job.job_id, 100, None), evaluating)
        assert ended == (TrialState.FAILED, None, "its last bundle has no validation loss")

    def test_cancelled(self):
        ended = self.hear(lambda job: cancelled(job.job_id, "user"))
        assert ended == (TrialState.CANCELLED, None, "cancelled (user)")

    def test_pruned(self):
        ended = self.hear(
            lambda job: queued(job.job_id),
            lambda job: written(job.job_id, 50, 1.0),
            lambda job: written(job.job_id, 100, 1.0),
            evaluating,
            lambda job: succeeded(job.job_id),
            lambda job: queued(job.job_id),
            lambda job: written(job.job_id, 50, 2.0),
            pruning=PruningSpec(min_trials=1),
        )
        reason = "at 50% its lowest validation loss was 2, the median of 1 earlier trials 1"
        assert ended == (TrialState.PRUNED, 2.0, reason)


BOTH = {"full_valid_loss": 1.0, "valid_loss": 2.0}


class TestBundles:
    """A trial is compared by the loss on all texts where its recipe asks for that, else by the one on some."""

    SOME = a_sweep_spec()
    ALL = a_sweep_spec(
        job=a_job_spec(recipe=Recipe(eval_every_steps=10), validation_file=a_file_ref("valid.jsonl"))
    )

    def follow(self, spec, metrics, *, step: int = 50, losses=((10, 3.0),)) -> Trial:
        bundle = written("ftjob-1", step, None).model_copy(update={"metrics": metrics})
        trial = a_trial(1, TrialState.RUNNING, losses=losses)
        return sweeps.follow(Sweep(SWEEP_ID, TENANT, "ds-1", spec), trial, bundle, []).trials[0]

    @pytest.mark.parametrize(
        ("spec", "metrics", "losses"),
        [
            (SOME, BOTH, ((10, 3.0), (50, 2.0))),
            (ALL, BOTH, ((10, 3.0), (50, 1.0))),
            (ALL, {"valid_loss": 2.0}, ((10, 3.0),)),
            (SOME, {}, ((10, 3.0),)),
        ],
    )
    def test_on_the_way(self, spec, metrics, losses):
        assert self.follow(spec, metrics).losses == losses

    def test_of_a_step_that_comes_twice_the_first_counts(self):
        assert self.follow(self.SOME, BOTH, step=10).losses == ((10, 3.0),)

    @pytest.mark.parametrize(("metrics", "loss"), [(BOTH, 1.0), ({"valid_loss": 2.0}, 2.0), ({}, None)])
    def test_at_the_end(self, metrics, loss):
        trial = self.follow(self.SOME, metrics, step=100)
        assert (trial.is_measured, trial.final_loss, trial.losses) == (True, loss, ((10, 3.0),))


def stop(cause: StopCause, decision: Decision) -> tuple[object, ...]:
    assert (decision.sweep.state, decision.sweep.stop) == (SweepState.STOPPING, cause)
    return decision.messages


def test_what_runs_is_ended_once_and_by_whom_is_said():
    trials = [
        a_trial(0, TrialState.COMPLETED, 1.0),
        a_trial(1, TrialState.PRUNED, 2.0, is_open=True),
        a_trial(2, TrialState.RUNNING),
    ]
    sweep = Sweep(SWEEP_ID, TENANT, "ds-1", a_sweep_spec(max_cost=Decimal("2.00")))
    cancel = {"job_id": "ftjob-2", "tenant": TENANT}
    assert stop(StopCause.USER, sweeps.cancel(sweep, SWEEP_ID, TENANT, trials)) == (
        SweepStopping(**OF_SWEEP, cause=StopCause.USER, message="cancelled"),
        CancelJob(**cancel, reason="user"),
    )
    budget = "the budget of 2.00 US dollars is spent"
    assert stop(StopCause.BUDGET, sweeps.limit(sweep, trials, Decimal("2.00"))) == (
        SweepStopping(**OF_SWEEP, cause=StopCause.BUDGET, message=budget),
        CancelJob(**cancel, reason="budget"),
    )


def test_a_pruned_trial_is_never_the_best():
    trials = [a_trial(0, TrialState.PRUNED, 0.5), a_trial(1, TrialState.COMPLETED, 1.0)]
    assert sweeps.best_of(trials) == trials[1]
    assert sweeps.best_of(trials[:1]) is None


def test_the_end_names_the_best_trial_and_what_all_cost():
    trials = [a_trial(0, TrialState.COMPLETED, 1.25), a_trial(1, TrialState.FAILED)]
    sweep = Sweep(SWEEP_ID, TENANT, "ds-1", a_sweep_spec(parameters={"lora.rank": RANKS}, num_trials=2))
    ended = SweepEnded(
        **OF_SWEEP,
        state=SweepState.SUCCEEDED,
        best=0,
        best_valid_loss=1.25,
        num_trials=2,
        cost=Decimal(3),
        message="all trials have ended; trial 0 is the best one, validation loss 1.25",
    )
    assert sweeps.conclude(sweep, trials, Decimal(3)).messages == (ended,)
    nothing = {"state": SweepState.FAILED, "best": None, "best_valid_loss": None, "num_trials": 2}
    message = "all trials have ended; none was trained to its end"
    (failed,) = sweeps.conclude(sweep, [trials[1], trials[1]], Decimal(3)).messages
    assert failed == ended.model_copy(update={**nothing, "message": message})
