"""A device that was too small is tried once more with less to keep, where the recipe leaves that open."""

from dataclasses import replace

import pytest

from schemas.base import FailureClass
from schemas.job import JobFailed, JobRequeued, JobScheduled, StopReason
from schemas.lifecycle import JobState
from schemas.specification import Recipe
from tests.builders import a_job, a_job_spec, a_stop
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import History

STOPPING, FAILED = JobState.STOPPING, JobState.FAILED


def test_out_of_memory_is_tried_once_more_with_activations_computed_again():
    out_of_memory = a_stop(StopReason.FAILURE, failure_class=FailureClass.OOM)
    before = a_job(STOPPING, stop=out_of_memory)
    history = History(before).apply(incoming.released(), incoming.stopped())
    message = f"{out_of_memory.message}; activations are computed again from now on"
    assert history.last(JobRequeued).message == message
    history.schedule()
    fact = history.last(JobScheduled)
    assert fact.spec.recipe.gradient_checkpointing is True
    assert fact.config_hash == before.plan.config_hash
    again = replace(history.job, state=STOPPING, run=replace(history.job.run, stop=out_of_memory))
    ended = History(again).apply(incoming.released(attempt=2), incoming.stopped(attempt=2))
    assert (ended.job.state, ended.last(JobFailed).failure_class) == (FAILED, FailureClass.OOM)


@pytest.mark.parametrize("checkpointing", [True, False])
def test_out_of_memory_is_final_where_the_recipe_says_whether_activations_are_kept(checkpointing):
    out_of_memory = a_stop(StopReason.FAILURE, failure_class=FailureClass.OOM)
    spec = a_job_spec(recipe=Recipe(gradient_checkpointing=checkpointing))
    history = History(a_job(STOPPING, stop=out_of_memory, spec=spec)).apply(
        incoming.released(), incoming.stopped()
    )
    assert (history.job.state, history.types) == (FAILED, ["JobFailed"])
