"""A job of several stages trains one after the other: one job, whose steps, budgets and lineage go over all."""

from dataclasses import replace
from datetime import timedelta

import pytest

from schemas.artifacts import DatasetCounts
from schemas.base import BestBundle, FailureClass, StartFrom
from schemas.identity import config_hash
from schemas.job import (
    JobCancelled,
    JobEvaluating,
    JobFailed,
    JobPaused,
    JobQueued,
    JobScheduled,
    JobStageCompleted,
    PauseReason,
    SubmitJob,
)
from schemas.lifecycle import JobState
from schemas.specification import CheckpointSpec, LoraSpec, Recipe, StageSpec
from services.scheduler.decide import commands
from services.scheduler.decide.admission import plan_of
from services.scheduler.model import DatasetState
from shared.errors import Refused
from tests.builders import (
    NOON,
    TENANT,
    a_bundle,
    a_dataset,
    a_dataset_ref,
    a_file_ref,
    a_job_spec,
    a_sha,
)
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import VIEW, History

PAIRS = StageSpec(recipe=Recipe(method="dpo"), training_file=a_file_ref("pairs.jsonl"))
SPEC = a_job_spec(later_stages=(PAIRS,))
FIRST = a_dataset()
SECOND = a_dataset(
    dataset_id="ds-2",
    ref=a_dataset_ref("pairs"),
    counts=DatasetCounts(rows=100, windows=40, tokens=9_000, loss_tokens=4_000, kept_leaks={"stdlib": 2}),
    files=FIRST.files.model_copy(update={"training": PAIRS.training_file.sha256}),
)
STEPS, ALL_STEPS = 600, 640
"""Of the first stage, and of both."""


def submission(spec=SPEC, later=("ds-2",)):
    return SubmitJob(job_id="ftjob-1", tenant=TENANT, dataset_id="ds-1", later_dataset_ids=later, spec=spec)


def submitted(*later, spec=SPEC):
    job = commands.admit(submission(spec), None, FIRST, later_datasets=later or (SECOND,), now=NOON)
    decision = commands.submit(job, VIEW)
    history = History(decision.job)
    history.events += decision.events
    return history


def in_second(**verdict):
    """The first stage is trained, and the second one waits for nodes."""
    history = submitted().schedule().apply(incoming.started(), incoming.written())
    return history.apply(incoming.verified(**verdict), incoming.completed(), incoming.released())


def test_benchmarks_count_that_the_rows_of_all_stages_were_compared_with():
    both, replaced, earlier = a_sha("both"), a_sha("replaced"), a_sha("earlier")
    first = plan_of(SPEC, a_dataset(benchmarks={"both": both, "replaced": earlier, "first": both}))
    second = a_dataset(benchmarks={"both": both, "replaced": replaced, "second": both})
    assert plan_of(SPEC, second, first).benchmarks == {"both": both}
    assert plan_of(SPEC, second).benchmarks == second.benchmarks


def test_leaks_that_were_kept_are_those_of_all_stages():
    def dataset(**kept_leaks):
        return replace(FIRST, counts=FIRST.counts.model_copy(update={"kept_leaks": kept_leaks}))

    first = plan_of(SPEC, dataset(arc=1, stdlib=2))
    assert plan_of(SPEC, dataset(stdlib=3, holdout=4), first).kept_leaks == {
        "arc": 1,
        "holdout": 4,
        "stdlib": 5,
    }


class TestAdmission:
    def test_the_job_waits_until_the_datasets_of_all_stages_are_ready(self):
        history = submitted(None)
        assert history.job.state is JobState.VALIDATING
        assert history.apply(SECOND).job.state is JobState.QUEUED

    def test_one_that_is_rejected_fails_it_before_anything_is_trained(self):
        rejected = a_dataset(DatasetState.REJECTED, dataset_id="ds-2", code="dataset_empty")
        fact = submitted(rejected).last(JobFailed)
        assert (fact.code, fact.param) == ("dataset_empty", "later_stages[0].training_file")

    def test_each_dataset_is_of_its_own_stages_files(self):
        fact = submitted(replace(SECOND, files=FIRST.files)).last(JobFailed)
        assert (fact.code, fact.param) == ("dataset_mismatch", "later_stages[0].training_file")

    def test_the_holdout_is_the_jobs_whichever_stages_dataset_has_another(self):
        files = SECOND.files.model_copy(update={"holdout": a_sha("holdout")})
        fact = submitted(replace(SECOND, files=files)).last(JobFailed)
        assert (fact.code, fact.param) == ("dataset_mismatch", "holdout")

    def test_each_stage_has_a_dataset(self):
        with pytest.raises(Refused, match="later_dataset_ids: found 0, expected 1"):
            commands.admit(submission(later=()), None, FIRST, now=NOON)

    @pytest.mark.parametrize(
        ("recipe", "code", "param", "words"),
        [
            (Recipe(method="dpo", weights="full"), "other_weights", "recipe.weights", "weights adapter"),
            (Recipe(method="sft"), "other_weights", "recipe.method", "method lora"),
            (Recipe(lora=LoraSpec(rank=8)), "other_adapter", "recipe.lora.rank", "rank 32"),
            (Recipe(checkpoint=CheckpointSpec(every_steps=1)), "bundles_too_often", "recipe.checkpoint.every_steps", "10"),
        ],
    )  # fmt: skip
    def test_a_stage_that_cannot_follow_is_refused_by_name(self, recipe, code, param, words):
        spec = a_job_spec(later_stages=(PAIRS.model_copy(update={"recipe": recipe}),))
        with pytest.raises(Refused, match=f"^later_stages.0.*{words}") as refused:
            commands.admit(submission(spec), None, FIRST, later_datasets=(SECOND,), now=NOON)
        assert (refused.value.code, refused.value.param) == (code, f"later_stages[0].{param}")

    def test_the_queue_hears_of_all_stages_and_of_the_last_ones_identity(self):
        fact = submitted().last(JobQueued)
        assert (fact.num_steps, [each.num_steps for each in fact.stages]) == (ALL_STEPS, [STEPS, 40])
        assert fact.config_hash == fact.stages[1].config_hash
        assert fact.recipe_reasons == {}
        assert [each.recipe_reasons["num_epochs"].split(":")[0] for each in fact.stages] == ["3", "1"]
        first, second = SPEC.by_stage
        assert fact.stages[0].config_hash != config_hash(first, FIRST.ref.version)  # it is resolved
        resolved = second.model_copy(update={"recipe": fact.stages[1].recipe})
        after = fact.stages[0].config_hash
        assert fact.stages[1].config_hash == config_hash(resolved, SECOND.ref.version, after=after)

    def test_of_three_stages_it_is_the_third_ones(self):
        spec = a_job_spec(later_stages=(PAIRS, PAIRS))
        command, third = submission(spec, ("ds-2", "ds-3")), replace(SECOND, dataset_id="ds-3")
        job = commands.admit(command, None, FIRST, later_datasets=(SECOND, third), now=NOON)
        (_, fact) = commands.submit(job, VIEW).events
        assert fact.config_hash == fact.stages[2].config_hash != fact.stages[1].config_hash

    def test_an_earlier_stage_of_other_rows_is_another_experiment(self):
        other = replace(FIRST, ref=a_dataset_ref("other"))
        job = commands.admit(submission(), None, other, later_datasets=(SECOND,), now=NOON)
        assert commands.submit(job, VIEW).job.config_hash != submitted().job.config_hash


class TestNextStage:
    def test_it_starts_from_the_final_bundle_with_its_own_recipe_and_dataset(self):
        history = in_second()
        assert history.job.state is JobState.QUEUED
        assert history.types[-1] == "JobStageCompleted"
        fact = history.schedule().last(JobScheduled)
        start = StartFrom(name="stage 1 of ftjob-1", job_id="ftjob-1", bundle=incoming.FINAL)
        assert (fact.attempt, fact.resume, fact.start_from) == (2, None, start)
        assert (fact.stage.number, fact.steps_before) == (2, STEPS)
        assert (fact.spec.recipe.method, fact.dataset) == ("dpo", SECOND.ref)

    def test_answers_follow_texts_where_both_train_all_weights(self):
        answers = StageSpec(recipe=Recipe(method="sft"), training_file=PAIRS.training_file)
        spec = a_job_spec(recipe=Recipe(method="cpt", weights="full"), later_stages=(answers,))
        history = submitted(spec=spec).schedule()
        assert history.last(JobScheduled).spec.recipe.method == "cpt"
        history.apply(incoming.started(), incoming.written(), incoming.verified(), incoming.completed())
        fact = history.apply(incoming.released()).schedule().last(JobScheduled)
        assert (fact.spec.recipe.method, fact.dataset) == ("sft", SECOND.ref)
        assert fact.start_from.bundle == incoming.FINAL

    def test_it_starts_from_the_best_bundle_where_the_recipe_asks_for_that(self):
        best = BestBundle(bundle=a_bundle(300), valid_loss=1.0)
        assert in_second(best=best).last(JobStageCompleted).stage.start.bundle == a_bundle(300)

    def test_it_names_the_job_that_has_the_best_bundle_where_that_is_another_one(self):
        """As of a job that continues another."""
        of_other = a_bundle(300).seen_from("ftjob-0", "ftjob-1")
        history = submitted()
        history.job = replace(history.job, best=BestBundle(bundle=of_other, valid_loss=1.0))
        history.schedule().apply(incoming.started(), incoming.verified(best=history.job.best))
        start = history.apply(incoming.completed()).last(JobStageCompleted).stage.start
        assert start == StartFrom(name="stage 1 of ftjob-1", job_id="ftjob-0", bundle=a_bundle(300))

    def test_nothing_is_left_of_what_counted_in_the_stage_before(self):
        history = submitted().schedule().apply(incoming.started(), incoming.released())
        best = BestBundle(bundle=a_bundle(300), valid_loss=1.0)
        history.job = replace(history.job, corrupt=frozenset({a_bundle(601)}), not_before=NOON)
        job = history.later(minutes=1).apply(incoming.verified(best=best), incoming.completed()).job
        assert (job.state, job.verified, job.corrupt, job.best) == (
            JobState.QUEUED,
            frozenset(),
            frozenset(),
            None,
        )
        assert (job.queued_at, job.not_before) == (NOON + timedelta(minutes=1), None)

    def test_a_later_verdict_on_a_bundle_of_the_stage_before_is_no_resume_point(self):
        history = in_second().apply(incoming.verified(a_bundle(590))).schedule()
        assert history.last(JobScheduled).resume is None
        assert history.apply(incoming.verified(a_bundle(599))).job.resume is None
        assert history.ignored == ["bundle of attempt 1, which trained an earlier stage"] * 2

    def test_no_attempt_begins_before_the_one_before_has_given_its_nodes_back(self):
        history = submitted().schedule().apply(incoming.started(), incoming.verified(), incoming.completed())
        assert history.types[-1] == "JobStageCompleted"
        held = history.job.not_before
        assert held == NOON + VIEW.policy.abrupt_stop
        history.later(minutes=1).schedule()
        assert (history.job.state, history.job.not_before - held) == (JobState.QUEUED, timedelta(minutes=1))
        assert history.apply(incoming.released()).job.not_before is None
        assert history.schedule().last(JobScheduled).attempt == 2

    def test_an_attempt_that_fails_resumes_within_the_stage(self):
        history = in_second().schedule().apply(incoming.started(attempt=2))
        newest = a_bundle(610, attempt=2)
        history.apply(
            incoming.written(newest, attempt=2), incoming.verified(newest), incoming.lost(attempt=2)
        )
        history.apply(incoming.stopped(newest, attempt=2), incoming.released(attempt=2))
        fact = history.later(minutes=10).schedule().last(JobScheduled)
        assert (fact.attempt, fact.resume, fact.stage.number) == (3, newest, 2)

    def test_one_without_a_bundle_begins_where_the_stage_does(self):
        history = in_second().schedule().apply(incoming.started(attempt=2), incoming.lost(attempt=2))
        history.apply(incoming.stopped(attempt=2), incoming.released(attempt=2))
        fact = history.later(minutes=10).schedule().last(JobScheduled)
        assert (fact.resume, fact.start_from.bundle) == (None, incoming.FINAL)

    def test_budgets_go_over_all_stages_but_for_what_progress_refills(self):
        used = {FailureClass.INTERNAL: 2, FailureClass.INFRA: 5}
        history = submitted()
        history.job = replace(history.job, requeues=used)
        history.schedule().apply(incoming.started(), incoming.verified(), incoming.completed())
        assert history.job.requeues == {FailureClass.INTERNAL: 2}

    def test_a_pause_that_comes_too_late_for_one_stage_holds_the_next(self):
        history = submitted().schedule().apply(incoming.started(), incoming.pause())
        history.apply(incoming.verified(), incoming.completed(), incoming.released())
        assert history.types[-2:] == ["JobStageCompleted", "JobPaused"]
        assert history.last(JobPaused).reason is PauseReason.USER
        resumed = history.apply(incoming.resume()).schedule()
        assert resumed.last(JobScheduled).stage.number == 2

    def test_such_a_pause_keeps_its_reason(self):
        history = submitted().schedule().apply(incoming.started(), incoming.pause(PauseReason.ALERT))
        history.apply(incoming.verified(), incoming.completed())
        assert history.last(JobPaused).reason is PauseReason.ALERT

    def test_a_cancellation_of_the_first_stage_leaves_nothing(self):
        assert submitted().apply(incoming.cancel()).last(JobCancelled).artifact is None

    def test_a_cancellation_ends_the_job_with_what_the_stage_before_has_trained(self):
        history = in_second().schedule().apply(incoming.started(attempt=2), incoming.cancel())
        history.apply(incoming.stopped(attempt=2), incoming.released(attempt=2))
        fact = history.last(JobCancelled)
        assert (fact.artifact.bundle, fact.artifact.dataset, fact.last_step) == (
            incoming.FINAL,
            FIRST.ref,
            STEPS,
        )
        assert [each.dataset for each in fact.artifact.stages] == [FIRST.ref]

    def test_a_dataset_that_is_trained_already_is_not_needed_any_more(self):
        history = in_second().apply(incoming.pause(), a_dataset(DatasetState.DELETED))
        assert history.job.state is JobState.PAUSED
        assert history.apply(incoming.resume()).job.state is JobState.QUEUED

    def test_one_that_is_still_to_come_is(self):
        gone = a_dataset(DatasetState.DELETED, dataset_id="ds-2")
        fact = in_second().apply(gone).last(JobFailed)
        assert (fact.code, fact.param) == ("dataset_deleted", "later_stages[0].training_file")


def test_the_last_stage_is_evaluated_with_the_whole_lineage():
    history = in_second().schedule().apply(incoming.started(attempt=2))
    final = a_bundle(ALL_STEPS, attempt=2)
    history.apply(incoming.verified(final), incoming.completed(final, attempt=2))
    fact = history.last(JobEvaluating)
    assert (fact.bundle, fact.dataset, fact.started_from) == (final, SECOND.ref, None)
    assert [each.dataset for each in fact.stages] == [FIRST.ref, SECOND.ref]
    assert [each.recipe.method for each in fact.stages] == ["lora", "dpo"]
    assert fact.config_hash == fact.stages[1].config_hash == history.job.config_hash
    assert fact.kept_leaks == {"stdlib": 2}


class TestContinue:
    """A retry from where the job left off."""

    ASK = incoming.retry().model_copy(update={"from_checkpoint": True})

    def go_on(self, history):
        ended = replace(history.job, state=JobState.FAILED)
        again, continued = commands.like(ended, self.ASK), commands.continued(ended, self.ASK)
        job = commands.admit(again, None, FIRST, later_datasets=(SECOND,), continued=continued, now=NOON)
        new = History(commands.submit(job, VIEW).job)
        return new.schedule().last(JobScheduled)

    def test_it_resumes_in_the_stage_of_the_newest_bundle(self):
        newest = a_bundle(610, attempt=2)
        history = in_second().schedule().apply(incoming.started(attempt=2), incoming.verified(newest))
        fact = self.go_on(history)
        assert (fact.attempt, fact.stage.number, fact.steps_before) == (1, 2, STEPS)
        assert fact.stage.first_attempt == 1
        assert fact.resume == newest.seen_from("ftjob-1", "ftjob-2")
        assert (fact.start_from.job_id, fact.dataset) == ("ftjob-1", SECOND.ref)

    def test_without_one_in_the_stage_it_begins_where_the_stage_does(self):
        fact = self.go_on(in_second())
        assert (fact.resume, fact.start_from.bundle, fact.stage.number) == (None, incoming.FINAL, 2)

    def test_one_that_begins_again_begins_with_the_first_stage(self):
        ended = replace(in_second().job, state=JobState.FAILED)
        again = commands.like(ended, incoming.retry())
        job = commands.admit(again, None, FIRST, later_datasets=(SECOND,), now=NOON)
        assert (job.stage.number, job.resume) == (1, None)


def test_a_job_without_stages_is_as_it_was():
    history = History(commands.submit(commands.admit(
        SubmitJob(job_id="ftjob-1", tenant=TENANT, dataset_id="ds-1", spec=a_job_spec()), None, FIRST, now=NOON
    ), VIEW).job)  # fmt: skip
    history.schedule().apply(incoming.started(), incoming.verified(), incoming.completed())
    fact = history.last(JobEvaluating)
    assert (history.last(JobScheduled).stage, fact.stages) == (None, ())
    assert fact.config_hash == config_hash(history.job.plan.spec, FIRST.ref.version)
