"""What is under way while a dependency is away: a task of each service that has long ones, and runners.

Each begins on request, is asked whether it is at work, and must end well.
"""

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg

from deploy.local.stack import Stack
from schemas.artifacts import files_digest
from schemas.base import Delayed
from schemas.dataset import DatasetReady
from schemas.evaluation import EvalInconclusive
from schemas.job import JobEvaluating, JobScheduled
from schemas.model import HubSource, RegisterBaseModel
from schemas.specification import DatasetSpec
from schemas.training import RunnerHeartbeat, StepReached, StepsRecorded, TrainingCompleted, TrainingFailed
from services.registry.model import model_id
from shared.retry import A_DAY
from shared.storage.s3 import S3ObjectStore
from tests.chaos.hub import COMMIT, REPOSITORY, Hub
from tests.chaos.proxies import LOOPBACK, TcpProxy
from tests.chaos.rig import STAND_INS
from tests.integration.attempts import Attempts
from tests.integration.evaluator_world import World as Gates
from tests.integration.evaluator_world import a_job, its_version
from tests.integration.nodes import Nodes
from tests.integration.registry_world import World as Registry
from tests.integration.registry_world import a_base_directory, entry
from tests.integration.test_ingest import Requests, a_spec
from tests.integration.voices import ear, voices
from tests.waiting import until

STORE_IS_AWAY = "the object store, which is away"
AGAIN_SECONDS = 60 + 2 * A_DAY.longest.total_seconds()
"""From the end of an absence: a task that has waited for long rests up to half a minute before its next try."""
STEP = timedelta(milliseconds=50)
DIGEST = "c" * 64
WITHOUT_A_MODEL = {"refusals": DIGEST}
"""A suite that was never registered, which a gate finds at once."""
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "ingest": {},
    "registry": {"REGISTRY_COPY_ATTEMPTS": "2"},
    "evaluator": {"EVALUATOR_SCORING_ATTEMPTS": "1"},
}


@dataclass
class Validation:
    """Of a dataset for a base model that ingest has not read yet."""

    requests: Requests
    spec: DatasetSpec
    row = "ingest.task WHERE payload -> 'spec' ->> 'base_sha' = $1"
    dataset_id: str = ""

    @property
    def subject(self) -> str:
        return self.spec.base_sha

    def __str__(self) -> str:
        return f"validation of {self.subject}"

    async def begin(self) -> None:
        self.dataset_id = await self.requests.submit(self.spec)

    async def is_delayed(self) -> None:
        delayed = await self.requests.until(self.dataset_id, Delayed)
        assert delayed.waiting_for == STORE_IS_AWAY

    async def ends_well(self) -> None:
        await self.requests.until(self.dataset_id, DatasetReady)
        assert self.requests.story(self.dataset_id)[-1] == "DatasetReady"
        assert "DatasetRejected" not in self.requests.story(self.dataset_id)


@dataclass
class Copy:
    """Of what was trained, which makes a version of it."""

    registry: Registry
    job: JobEvaluating
    row = "registry.task WHERE key = $1"

    @property
    def subject(self) -> str:
        return self.job.job_id

    def __str__(self) -> str:
        return f"copy of {self.subject}"

    async def begin(self) -> None:
        await self.registry.voices.say("scheduler", self.job)

    async def is_delayed(self) -> None:
        await self.registry.ear.until(self.job.job_id, "Delayed")

    async def ends_well(self) -> None:
        version = model_id(self.job.job_id, self.registry.digest(self.job))
        await self.registry.ear.until(version, "ModelRegistered", seconds=AGAIN_SECONDS)
        assert "PromotionRefused" not in self.registry.ear.types(self.job.job_id)


@dataclass
class Import:
    """Of a base model, from the hub."""

    registry: Registry
    hub: Hub
    row = "registry.task WHERE payload ->> 'name' = $1"
    name: str = field(default_factory=lambda: f"of-the-hub-{uuid4().hex[:8]}")

    @property
    def subject(self) -> str:
        return self.name

    def __str__(self) -> str:
        return f"import of {self.subject}"

    async def begin(self) -> None:
        source = HubSource(repository=REPOSITORY, commit=COMMIT)
        await self.registry.voices.say("admin", RegisterBaseModel(name=self.name, source=source))

    async def ends_well(self) -> None:
        known = await self.registry.ear.until(self.name, "BaseModelRegistered", seconds=AGAIN_SECONDS)
        paths = sorted(self.hub.directory.iterdir())
        assert known.base_sha == files_digest(tuple(entry(path, path.name) for path in paths))


IS_KNOWN = "SELECT true FROM evaluator.model_version WHERE model_id = $1"


@dataclass
class Gate:
    """Of a version that its registry does not know, so that no copy precedes it."""

    gates: Gates
    stack: Stack
    row = "evaluator.task JOIN evaluator.evaluation ON eval_id = key WHERE job_id = $1"
    job: JobEvaluating = field(
        default_factory=lambda: a_job(base_sha=DIGEST, template_sha256=DIGEST, suites=WITHOUT_A_MODEL)
    )

    @property
    def subject(self) -> str:
        return self.job.job_id

    def __str__(self) -> str:
        return f"gate of {self.subject}"

    async def begin(self) -> None:
        """Its version first: the real registry refuses the artifact at once, which ends a gate that waits for one."""
        version = its_version(self.job, DIGEST)
        await self.gates.send("registry", version)
        conn = await asyncpg.connect(self.stack.postgres_dsn("operator"))
        try:
            await until(
                lambda: conn.fetchval(IS_KNOWN, version.model_id), "the evaluator to know the version"
            )
        finally:
            await conn.close()
        await self.gates.send("scheduler", self.job)

    async def is_delayed(self) -> None:
        await self.gates.until(
            lambda fact: isinstance(fact, Delayed) and fact.subject_id == self.job.job_id,
            "that the gate waits",
        )

    async def ends_well(self) -> None:
        """With a verdict on what it has looked for."""
        verdict = await self.gates.until(
            lambda fact: isinstance(fact, EvalInconclusive) and fact.job_id == self.job.job_id, "a verdict"
        )
        assert "did not end" not in verdict.reason


@dataclass
class Run:
    """A runner that fetches its inputs and trains."""

    attempts: Attempts
    nodes: Nodes
    scheduled: JobScheduled
    steps: int
    every: int
    env: Mapping[str, str]

    @property
    def job_id(self) -> str:
        return self.scheduled.job_id

    async def begin(self) -> None:
        script = {"steps": self.steps, "seconds": STEP.total_seconds(), "every": self.every}
        await self.nodes.start(self.scheduled, script=script, **self.env)

    async def fetches(self, *, heartbeats: int, seconds: float) -> None:
        await self.attempts.until(
            self.job_id, RunnerHeartbeat, state="fetching", times=heartbeats, seconds=seconds
        )

    async def trains(self) -> None:
        await self.attempts.until(self.job_id, StepReached)

    @property
    def num_steps(self) -> int:
        return self.nodes.steps(self.scheduled)

    def batches(self) -> list[StepsRecorded]:
        return self.attempts.heard(self.job_id, StepsRecorded)

    async def ends_well(self) -> None:
        await self.attempts.until(self.job_id, TrainingCompleted)
        self.require_no_failure()

    def require_no_failure(self) -> None:
        assert self.attempts.heard(self.job_id, TrainingFailed) == []


@dataclass(frozen=True)
class World:
    """Services on one stack whose lines to S3 and whose hub can go away, and who plays everybody around them."""

    stack: Stack
    requests: Requests
    registry: Registry
    gates: Gates
    attempts: Attempts
    nodes: Nodes
    hub: Hub
    line: TcpProxy
    """Of the services, to S3."""
    runners_line: TcpProxy

    def heal(self) -> None:
        self.line.heal()
        self.runners_line.heal()

    async def validation(self) -> Validation:
        base = await self.requests.base_model()
        await self.requests.write("registry", base)
        return Validation(self.requests, await a_spec(self.requests, base, seed=1))

    async def copy(self) -> Copy:
        """The gate that follows has nothing to do with a model either."""
        return Copy(self.registry, await self.registry.train(suites=WITHOUT_A_MODEL))

    def hub_import(self) -> Import:
        folder = self.registry.root / f"hub-{uuid4().hex}"
        self.hub.offer(a_base_directory(folder, marker=uuid4().hex, more={}))
        return Import(self.registry, self.hub)

    def gate(self) -> Gate:
        return Gate(self.gates, self.stack)

    async def run(self, *, steps: int, every: int, inputs_limit: timedelta) -> Run:
        env = {"RUNNER_INPUTS_LIMIT": f"PT{inputs_limit.total_seconds():g}S"}
        return Run(self.attempts, self.nodes, await self.attempts.schedule(), steps, every, env)


@asynccontextmanager
async def under_way(stack: Stack, attempts: Attempts, folder: Path) -> AsyncIterator[World]:
    """The services are up, and know one base model."""
    key = stack.s3_credentials("root")
    objects = S3ObjectStore(stack.s3_endpoint, key.access_key, key.secret_key, bucket=stack.s3_bucket)
    nodes = Nodes(attempts, folder)
    async with AsyncExitStack() as closing:
        line, runners_line = [
            await closing.enter_async_context(TcpProxy(stack.state.port("s3"))) for _ in range(2)
        ]
        hub = closing.enter_context(Hub(a_base_directory(folder / "hub", marker="first", more={})))
        for name, settings in SETTINGS.items():
            endpoints = {
                f"{name.upper()}_S3_ENDPOINT": f"http://{LOOPBACK}:{line.port}",
                "REGISTRY_HUB_ENDPOINT": hub.url,
            }
            program = (sys.executable, *STAND_INS[name]) if name in STAND_INS else None
            await stack.start(name, env={**endpoints, **settings}, command=program)
            closing.push_async_callback(stack.stop, name)
        nodes_line = {"TRAINER_AGENT_NODES_S3_ENDPOINT": f"http://{LOOPBACK}:{runners_line.port}"}
        await stack.stop("trainer_agent")
        await stack.start("trainer_agent", env=nodes_line)
        for name in (*SETTINGS, "trainer_agent"):
            await stack.wait_healthy(name)
        closing.push_async_callback(nodes.clean_up)
        registry = Registry(
            await closing.enter_async_context(voices(stack)),
            await closing.enter_async_context(ear(stack, "model.events")),
            objects,
            folder,
        )
        registry.base_sha = (await registry.register_base("tiny-of-absences")).base_sha
        yield World(
            stack=stack,
            requests=await closing.enter_async_context(Requests.on(stack, folder)),
            registry=registry,
            gates=await closing.enter_async_context(Gates.on(stack)),
            attempts=attempts,
            nodes=nodes,
            hub=hub,
            line=line,
            runners_line=runners_line,
        )
