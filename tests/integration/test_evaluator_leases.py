"""Scoring starts on devices that it has leased: it waits where people see it, and a death of the evaluator frees them."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.base import Delayed
from schemas.evaluation import EvalPassed
from schemas.node import DeviceLeaseEnded, DeviceLeaseQueued, DevicesLeased, LeaseEnd
from tests.integration import test_evaluator
from tests.integration.attempts import Attempts
from tests.integration.evaluator_world import World, its_version
from tests.integration.kills import alive, killed_at
from tests.integration.provisioning import attempts_on, provisioner_env_of
from tests.integration.test_evaluator import Models, Setting, chat, verdict_of
from tests.integration.test_leases import ask, give_back
from tests.scoring.tiny import QUESTIONS
from tests.waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.torch]

models, setting = test_evaluator.models, test_evaluator.setting

POOLS = """
[pools.place]
capacity_type = "spot"
device = "cpu"
nodes = 1
devices_per_node = 2
device_memory_gib = 0.5
"""
ENV = {
    "EVALUATOR_SCORING_THREADS": "1",
    "EVALUATOR_MAX_NEW_TOKENS": "16",
    "EVALUATOR_SCORING_ATTEMPTS": "1",
    "EVALUATOR_POOL": "place",
    "EVALUATOR_LEASE_TERM": "PT10S",
}


@pytest.fixture(scope="module")
async def attempts(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Attempts]:
    env = provisioner_env_of(stack, tmp_path_factory.mktemp("evaluator-leases"), POOLS)
    async with attempts_on(stack, env) as attempts:
        yield attempts


@pytest.fixture(scope="module")
async def world(stack: Stack, attempts: Attempts) -> AsyncIterator[World]:
    await alive(stack, "evaluator", env=ENV)
    async with World.on(stack) as world:
        await until_known(stack, "place")
        yield world
    await stack.stop("evaluator")


async def until_known(stack: Stack, pool: str) -> None:
    """Wait until the evaluator knows what devices of the pool have: too little for a model on one of them."""
    conn = await asyncpg.connect(stack.postgres_dsn("evaluator"))

    async def is_known() -> bool:
        query = "SELECT true FROM pool WHERE name = $1 AND device_memory_bytes IS NOT NULL"
        return bool(await conn.fetchval(query, pool))

    await until(is_known)
    await conn.close()


def leases_of(attempts: Attempts, kind: type, job_id: str, world: World) -> list:
    """Facts of that kind about leases of the job's evaluation."""
    evals = {fact.eval_id for fact in world.about(job_id)}
    facts = [each.message for each in attempts._heard if isinstance(each.message, kind)]
    return [fact for fact in facts if any(eval_id in fact.lease_id for eval_id in evals)]


async def ask_for_a_verdict(world: World, setting: Setting, models: Models, *, first: int):
    """`first`: number of the first question of its holdout, so that its verdict is not known from another one."""
    rows = [chat(question, "alpha") for question in QUESTIONS[first : first + 100]]
    job = setting.job(holdout=await world.put_rows(rows))
    digest = await world.put_model(models.good, base_sha=job.base_sha, job_id=job.job_id, bundle=job.bundle)
    await world.send("scheduler", job)
    await world.send("registry", its_version(job, digest))
    return job


async def test_a_model_that_one_device_does_not_hold_waits_for_two_as_people_see_and_gives_them_back(
    world: World, attempts: Attempts, setting: Setting, models: Models
):
    replica = await ask(attempts, pool="place")
    await attempts.until(replica, DevicesLeased)
    job = await ask_for_a_verdict(world, setting, models, first=0)
    delayed = await world.until(
        lambda event: isinstance(event, Delayed) and event.subject_id == job.job_id, "the wait"
    )
    assert delayed.waiting_for == "2 devices of one machine of pool place: 1 held by serving"
    [queued] = leases_of(attempts, DeviceLeaseQueued, job.job_id, world)
    assert (queued.holder, queued.purpose) == ("evaluator", "scoring")
    assert leases_of(attempts, DevicesLeased, job.job_id, world) == []

    await give_back(attempts, replica)
    assert type(await verdict_of(world, job.job_id)) is EvalPassed
    assert leases_of(attempts, DevicesLeased, job.job_id, world)[0].devices == (0, 1)
    ended = await attempts.until(queued.lease_id, DeviceLeaseEnded)
    assert ended.reason is LeaseEnd.RETURNED


async def test_a_killed_evaluators_devices_go_to_the_next_and_its_evaluation_costs_no_try(
    world: World, attempts: Attempts, setting: Setting, models: Models, stack: Stack
):
    async with killed_at(stack, "evaluator", "eval.devices.leased", env=ENV):
        job = await ask_for_a_verdict(world, setting, models, first=1)
    [leased] = leases_of(attempts, DevicesLeased, job.job_id, world)
    next_one = await ask(attempts, pool="place", devices=2)
    await attempts.until(next_one, DeviceLeaseQueued)
    await attempts.until(leased.lease_id, DeviceLeaseEnded, reason=LeaseEnd.EXPIRED)
    assert (await attempts.until(next_one, DevicesLeased)).devices == leased.devices
    await alive(stack, "evaluator", env=ENV)
    await give_back(attempts, next_one)
    assert type(await verdict_of(world, job.job_id)) is EvalPassed
    others = {fact.lease_id for fact in leases_of(attempts, DevicesLeased, job.job_id, world)}
    assert len(others) == 2, "it was scored on a lease of its own"
