"""Machines whose clocks are an hour ahead and an hour behind, each against the others: nobody decides by them."""

import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from deploy.local.stack import Stack
from schemas import layout
from schemas.artifacts import DatasetCounts
from schemas.dataset import DatasetFiles, DatasetReady
from schemas.job import CancelJob, PauseJob, ResumeJob, SubmitJob
from schemas.node import NodePreempted, NodesReleased, PreemptNode
from schemas.specification import Resources
from schemas.training import RunnerStopped, StepReached, TrainingStopped
from shared.clock import utc_now
from shared.processes.identity import marked
from shared.storage.s3 import S3ObjectStore
from tests.builders import a_job_spec
from tests.chaos.clocks import off_by
from tests.chaos.rig import STAND_INS
from tests.chaos.scale import at_night, note
from tests.integration.attempts import FAKE_CHILD, SHA, TENANT, Attempts
from tests.integration.nodes import QUICK_TIMES, nodes
from tests.integration.registry_world import World as Registry
from tests.integration.voices import Ear, ear, voices
from tests.waiting import until

__all__ = ["nodes"]

pytestmark = pytest.mark.stack

HOUR = 3600
AHEAD, BEHIND = HOUR, -HOUR
TRAINERS = ("scheduler", "provisioner", "trainer_agent", "checkpoint_watcher")
POOLS = """
[pools.clocks]
device = "cpu"
capacity_type = "spot"
nodes = 1
price_per_device_hour = 0.10
"""
GRACE_SECONDS = 8.0
SCRIPT = {"steps": 10**6, "seconds": 0.05, "save_seconds": 1.0}
SETTINGS = {"serving_controller": {"SERVING_CONTROLLER_KEEP_SECONDS": "3"}}
COMMANDS = {name: (sys.executable, *words) for name, words in STAND_INS.items()}
LEFT = """
    SELECT (SELECT count(*) FROM {schema}.parked WHERE state = 'parked' AND aggregate_id LIKE $1)
         + (SELECT count(*) FROM {schema}.waiting WHERE aggregate_id LIKE $1)
         + (SELECT count(*) FROM {schema}.timer WHERE fires_at < clock_timestamp() AND payload::text LIKE $1)
         + (SELECT count(*) FROM {schema}.outbox JOIN {schema}.unpublished USING (id) WHERE aggregate_id LIKE $1)"""

ahead = pytest.mark.parametrize("off", [AHEAD], ids=["ahead"])
behind = pytest.mark.parametrize("off", [BEHIND], ids=["behind"])
both = pytest.mark.parametrize(
    "off",
    [
        pytest.param(AHEAD, id="ahead"),
        pytest.param(BEHIND, id="behind", marks=at_night("neighbours are ahead and behind in either")),
    ],
)


@asynccontextmanager
async def running(
    stack: Stack, clocks: Mapping[str, int], folder: Path, env: Mapping[str, str] = {}
) -> AsyncIterator[None]:
    """These services, each with a clock that is off by so much."""
    async with AsyncExitStack() as closing:
        for name, off in clocks.items():
            settings = {**off_by(off, folder), **SETTINGS.get(name, {}), **env}
            await stack.start(name, env=settings, command=COMMANDS.get(name))
            closing.push_async_callback(stack.stop, name)
        for name in clocks:
            await stack.wait_healthy(name)
        yield


def alternating(names: tuple[str, ...], off: int) -> dict[str, int]:
    """Neighbours have an hour or two between them."""
    return {name: off if number % 2 == 0 else -off for number, name in enumerate(names)}


@pytest.fixture(scope="module")
async def attempts(stack: Stack) -> AsyncIterator[Attempts]:
    async with Attempts.on(stack) as attempts:
        yield attempts


class TestRunner:
    @pytest.fixture(autouse=True)
    async def control_side(self, stack, tmp_path, off):
        async with running(stack, {"trainer_agent": -off}, tmp_path):
            yield

    @ahead
    async def test_has_the_time_that_is_left_to_save(self, attempts, nodes, tmp_path, off):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script=SCRIPT, **off_by(off, tmp_path))
        await attempts.until(scheduled.job_id, StepReached)
        await attempts.stop(scheduled, seconds=120)
        stopped = await attempts.until(scheduled.job_id, TrainingStopped)
        assert stopped.bundle is not None
        state = await attempts.bundle_state(scheduled.job_id, stopped.bundle)
        assert state["step"] == stopped.last_step

    @behind
    async def test_ends_at_the_deadline_what_does_not_stop(self, attempts, nodes, tmp_path, off):
        scheduled = await attempts.schedule()
        await nodes.start(scheduled, script=SCRIPT | {"ignore_stop": True}, **off_by(off, tmp_path))
        await attempts.until(scheduled.job_id, StepReached)
        await attempts.stop(scheduled, seconds=5)
        stopped = await attempts.until(scheduled.job_id, RunnerStopped)
        assert (stopped.bundle, stopped.message) == (None, "ended at the stop's deadline before it had saved")


class Job:
    """From its submission on; gateway and ingest are played."""

    def __init__(self, attempts: Attempts, heard: Ear) -> None:
        self.attempts = attempts
        self.heard = heard
        self.id = f"ftjob-{uuid4().hex[:8]}"

    async def submit(self) -> None:
        like = self.attempts.a_schedule()
        resources = Resources(pool="clocks", grace_seconds=GRACE_SECONDS)
        spec = a_job_spec(base_model="tiny-clocks", base_sha=like.base_sha, resources=resources)
        ready = DatasetReady(
            dataset_id=f"ds-{self.id}",
            tenant=TENANT,
            dataset_version=like.dataset.version,
            manifest_sha256=like.dataset.manifest_sha256,
            base_sha=like.base_sha,
            template_sha256=SHA,
            counts=DatasetCounts(rows=1, windows=1, tokens=1, loss_tokens=1),
            benchmarks={},
            suites={},
            files=DatasetFiles(training=spec.training_file.sha256),
        )
        await self.say(SubmitJob(**self.name, dataset_id=ready.dataset_id, spec=spec))
        await self.attempts.write("ingest", ready)

    @property
    def name(self) -> dict[str, str]:
        return {"job_id": self.id, "tenant": TENANT}

    async def say(self, command: Any) -> None:
        await self.attempts.write("gateway", command)

    async def training(self, attempt: int) -> None:
        await self.attempts.until(self.id, StepReached, attempt=attempt)

    async def saved(self, attempt: int) -> int:
        """The step of the bundle that the attempt's stop left."""
        stopped = await self.attempts.until(self.id, TrainingStopped, attempt=attempt)
        assert stopped.bundle is not None, stopped
        return int((await self.attempts.bundle_state(self.id, stopped.bundle))["step"])

    def freeze(self, attempt: int) -> None:
        """All processes of its node: it can be ended from outside alone."""
        name = layout.attempt_name(self.id, attempt)
        for process in marked(f"RUNNER_NODE_ID={name}-n0"):
            os.kill(process.pid, signal.SIGSTOP)


def provisioner_env(stack: Stack, folder: Path, off: int) -> dict[str, str]:
    own = {
        "RUNNER_CHILD_ARGV": json.dumps([sys.executable, str(FAKE_CHILD), json.dumps(SCRIPT)]),
        **QUICK_TIMES,
        **off_by(off, folder),
    }
    (folder / "pools.toml").write_text(POOLS)
    lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in own.items())
    (folder / "runner.env").write_text((stack.state.root / "runner.env").read_text() + lines)
    return {
        "PROVISIONER_POOLS_FILE": str(folder / "pools.toml"),
        "PROVISIONER_NODES_DIR": str(folder / "nodes"),
        "PROVISIONER_RUNNER_ENV_FILE": str(folder / "runner.env"),
    }


@both
async def test_a_job_is_paused_taken_back_and_cancelled(stack, db, attempts, tmp_path, off):
    """Its runners' clocks are off to the other side than the scheduler's."""
    env = provisioner_env(stack, tmp_path, -off)
    clocks = alternating(TRAINERS, off)
    async with running(stack, clocks, tmp_path, env), ear(stack, "job.events") as heard:
        job = Job(attempts, heard)
        await job.submit()
        await job.training(1)
        await job.say(PauseJob(**job.name))
        step = await job.saved(1)
        paused = await heard.until_any(job.id, "JobPaused")
        assert paused.resume.step == step
        await job.say(ResumeJob(**job.name))
        await job.training(2)
        await attempts.write("admin", PreemptNode(node_id=f"job:{job.id}", notice_seconds=GRACE_SECONDS))
        notice = await attempts.until(job.id, NodePreempted)
        assert abs((notice.deadline - utc_now()).total_seconds()) < HOUR / 2
        assert await job.saved(2) >= step
        await job.training(3)
        job.freeze(3)
        await job.say(CancelJob(**job.name))
        await attempts.until(job.id, NodesReleased, attempt=3)
        await heard.until_any(job.id, "JobCancelled")
        await until(lambda: is_at_rest(db, TRAINERS, job.id), "rest")
        note("clocks apart", seconds=off, attempts=3)


async def is_at_rest(db: Any, schemas: tuple[str, ...], about: str) -> bool:
    """Nothing about it was parked, no timer is overdue, and all was sent."""
    return not any([await db.fetchval(LEFT.format(schema=schema), f"%{about}%") for schema in schemas])


@ahead
async def test_a_version_is_registered_and_served(stack, db, tmp_path, off):
    names = ("registry", "serving_controller")
    key = stack.s3_credentials("root")
    objects = S3ObjectStore(stack.s3_endpoint, key.access_key, key.secret_key, bucket=stack.s3_bucket)
    async with (
        running(stack, alternating(names, off), tmp_path),
        voices(stack) as speaking,
        ear(stack, "model.events", "deployment.events") as heard,
    ):
        registry = Registry(speaking, heard, objects, tmp_path)
        registry.base_name = f"tiny-{uuid4().hex[:8]}"
        base = await registry.register_base(registry.base_name, marker=registry.base_name)
        registry.base_sha = base.base_sha
        version = await registry.gated(await registry.train(base=base))

        def ready() -> list[Any]:
            all_heard = [each.message for story in heard.heard.values() for each in story]
            return [
                each for each in all_heard if each.type == "DeploymentReady" and each.digest == version.digest
            ]

        async def is_ready() -> bool:
            return bool(ready())

        await until(is_ready, "that it is served")
        await until(lambda: is_at_rest(db, names, version.job_id), "rest")
