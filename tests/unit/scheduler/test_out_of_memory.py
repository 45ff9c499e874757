"""A device that was too small is tried once more with less to keep, where the recipe leaves that open."""

from dataclasses import replace

import pytest

from schemas.base import FailureClass
from schemas.fitting import least
from schemas.job import JobFailed, JobRequeued, JobScheduled, StopReason
from schemas.lifecycle import JobState
from schemas.specification import Recipe
from tests.builders import a_job, a_job_spec, a_stop
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import History

STOPPING, FAILED = JobState.STOPPING, JobState.FAILED


@pytest.mark.parametrize(
    ("recipe", "changed"),
    [
        ({}, "activations are computed again, micro batches are of one window"),
        ({"micro_batch_size": 2}, "activations are computed again"),
        ({"gradient_checkpointing": True}, "micro batches are of one window"),
        (
            {"micro_batch_size": 1, "sharding": {"library": "deepspeed", "offload_optimizer": "auto"}},
            "activations are computed again, the optimizer is in the host's memory",
        ),
    ],
)
def test_out_of_memory_is_tried_once_more_with_the_least_that_the_recipe_leaves_open(recipe, changed):
    out_of_memory = a_stop(StopReason.FAILURE, failure_class=FailureClass.OOM)
    spec = a_job_spec(recipe=Recipe.model_validate({"batch_size": 4} | recipe))
    before = a_job(STOPPING, stop=out_of_memory, spec=spec)
    history = History(before).apply(incoming.released(), incoming.stopped())
    message = f"{out_of_memory.message}; {changed} from now on"
    assert history.last(JobRequeued).message == message
    history.schedule()
    fact = history.last(JobScheduled)
    assert fact.spec.recipe == least(before.plan.spec.recipe, num_devices=1)
    assert fact.config_hash == before.plan.config_hash
    again = replace(history.job, state=STOPPING, run=replace(history.job.run, stop=out_of_memory))
    ended = History(again).apply(incoming.released(attempt=2), incoming.stopped(attempt=2))
    assert (ended.job.state, ended.last(JobFailed).failure_class) == (FAILED, FailureClass.OOM)


@pytest.mark.parametrize(
    ("recipe", "param", "nearest"),
    [
        (
            {"gradient_checkpointing": False},
            "recipe.gradient_checkpointing",
            "recipe.gradient_checkpointing true",
        ),
        ({"micro_batch_size": 4}, "recipe.micro_batch_size", "recipe.micro_batch_size 2"),
        ({"micro_batch_size": 2}, "recipe.micro_batch_size", "recipe.micro_batch_size 1"),
        (
            {},
            "policy.max_seq_length",
            "a smaller policy.max_seq_length, more resources.devices_per_node than 1, or a pool of larger devices",
        ),
    ],
)
def test_out_of_memory_is_final_where_the_recipe_says_whether_activations_are_kept_and_names_what_needs_less(
    recipe, param, nearest
):
    out_of_memory = a_stop(StopReason.FAILURE, failure_class=FailureClass.OOM)
    asked = {"gradient_checkpointing": True, "micro_batch_size": 1} | recipe
    spec = a_job_spec(recipe=Recipe(**asked))
    history = History(a_job(STOPPING, stop=out_of_memory, spec=spec)).apply(
        incoming.released(), incoming.stopped()
    )
    assert (history.job.state, history.types) == (FAILED, ["JobFailed"])
    fact = history.last(JobFailed)
    assert fact.param == param
    assert fact.message.startswith(out_of_memory.message)
    assert fact.message.endswith(f"Nearest that needs less: {nearest}")
