"""A recipe that asks for the best checkpoint gets that one, from whichever attempt or job it is."""

from dataclasses import replace

import pytest

from schemas.artifacts import DatasetCounts
from schemas.base import BestBundle
from schemas.job import JobCancelled, JobEvaluating, JobFailed
from schemas.lifecycle import JobState
from schemas.specification import EarlyStoppingSpec, Recipe
from services.scheduler.decide import commands
from services.scheduler.decide.ending import artifact_fields
from tests.builders import NOON, a_bundle, a_dataset, a_file_ref, a_job, a_job_spec
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import History

BEST = BestBundle(bundle=a_bundle(4), valid_loss=1.25)
BETTER = BestBundle(bundle=a_bundle(8), valid_loss=1.0)


def trained(*verdicts):
    """A job whose one attempt ended with FINAL, after these verdicts."""
    history = History(a_job(JobState.QUEUED)).schedule()
    history.apply(incoming.started(), *(incoming.written(verdict.bundle) for verdict in verdicts), *verdicts)
    return history.apply(incoming.completed())


class TestCompleted:
    def test_the_best_one_that_the_last_one_names_is_evaluated(self):
        history = trained(incoming.verified(BEST.bundle, best=BEST), incoming.verified(best=BEST))
        fact = history.last(JobEvaluating)
        assert (fact.bundle, fact.best_valid_loss) == (BEST.bundle, 1.25)

    def test_the_last_one_where_it_is_the_best(self):
        itself = BestBundle(bundle=incoming.FINAL, valid_loss=0.5)
        fact = trained(incoming.verified(BEST.bundle, best=BEST), incoming.verified(best=itself)).last(
            JobEvaluating
        )
        assert (fact.bundle, fact.best_valid_loss) == (incoming.FINAL, 0.5)

    def test_the_last_one_where_nobody_asks_for_the_best(self):
        fact = trained(incoming.verified(BEST.bundle), incoming.verified()).last(JobEvaluating)
        assert (fact.bundle, fact.best_valid_loss) == (incoming.FINAL, None)

    def test_a_verdict_on_an_older_bundle_that_comes_later_changes_nothing(self):
        history = trained(incoming.verified(best=BETTER), incoming.verified(BEST.bundle, best=BEST))
        assert history.last(JobEvaluating).bundle == BETTER.bundle

    def test_one_of_an_earlier_attempt_is_remembered(self):
        """The second attempt completes with the bundle that it began from, of which nobody speaks again."""
        history = trained(incoming.verified(best=BEST))
        job = replace(history.job, state=JobState.QUEUED)
        again = History(job).schedule().apply(incoming.started(attempt=2))
        again.apply(incoming.completed(attempt=2))
        fact = again.last(JobEvaluating)
        assert (fact.attempt, fact.bundle, fact.best_valid_loss) == (2, BEST.bundle, 1.25)


def test_of_a_bundle_that_is_not_the_newest_no_other_is_the_best():
    job = a_job(JobState.STOPPING, verified=frozenset({incoming.FINAL}), best=BEST)
    assert [artifact_fields(job, each)["bundle"] for each in (incoming.FINAL, a_bundle(20))] == [
        BEST.bundle,
        a_bundle(20),
    ]
    assert artifact_fields(job, a_bundle(20))["best_valid_loss"] is None


class TestOfAnotherJob:
    """A runner that was taken over could name any tenant's."""

    FOREIGN = BestBundle(bundle=a_bundle(4).model_copy(update={"job_id": "ftjob-0"}), valid_loss=1.25)

    def ended(self, best):
        history = History(a_job(JobState.QUEUED, best=best)).schedule().apply(incoming.started())
        history.apply(incoming.written(), incoming.verified(best=self.FOREIGN), incoming.completed())
        return history.last(JobEvaluating)

    def test_counts_where_the_job_began_with_it(self):
        assert self.ended(self.FOREIGN).bundle == self.FOREIGN.bundle

    @pytest.mark.parametrize("best", [None, BEST])
    def test_is_nothing_else(self, best):
        fact = self.ended(best)
        assert (fact.bundle, fact.best_valid_loss) == (incoming.FINAL, None)


def test_a_cancelled_job_keeps_its_best_one_too():
    bundle = a_bundle(6)
    job = a_job(JobState.QUEUED, verified=frozenset({bundle}), best=BEST)
    artifact = History(job).apply(incoming.cancel()).last(JobCancelled).artifact
    assert (artifact.bundle, artifact.best_valid_loss, artifact.auto_deploy) == (BEST.bundle, 1.25, False)


class TestContinued:
    ASK = incoming.retry().model_copy(update={"from_checkpoint": True})
    FAILED = a_job(JobState.FAILED, verified=frozenset({a_bundle(6)}), best=BEST)

    def continued(self, original, command):
        spec, continued = commands.like(original, command), commands.continued(original, command)
        return commands.admit(spec, None, a_dataset(), continued=continued, now=NOON)

    def test_the_best_one_of_that_job_is_named_with_its_job(self):
        job = self.continued(self.FAILED, self.ASK)
        assert job.best.bundle == BEST.bundle.model_copy(update={"job_id": "ftjob-1"})
        assert job.best.valid_loss == BEST.valid_loss

    def test_one_that_begins_again_has_none(self):
        assert self.continued(self.FAILED, incoming.retry()).best is None


class TestValidationRows:
    RECIPE = Recipe(early_stopping=EarlyStoppingSpec())

    @pytest.mark.parametrize(
        ("recipe", "rows", "state"),
        [(RECIPE, 0, JobState.FAILED), (RECIPE, 1, JobState.QUEUED), (Recipe(), 0, JobState.QUEUED)],
    )
    def test_what_goes_by_the_loss_on_them_needs_some(self, recipe, rows, state):
        counts = DatasetCounts(rows=2000, windows=400, tokens=90_000, loss_tokens=1, validation_rows=rows)
        spec = a_job_spec(recipe=recipe, validation_file=a_file_ref("valid.jsonl"))
        history = History(a_job(JobState.VALIDATING, spec=spec))
        history.apply(a_dataset(files=None, counts=counts))
        assert history.job.state is state
        if state is JobState.FAILED:
            fact = history.last(JobFailed)
            assert (fact.code, fact.param) == ("no_validation_rows", "validation_file")
