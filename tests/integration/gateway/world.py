"""Only the gateway runs; the services that it hears and the replicas that it calls are spoken for by the test."""

import asyncio
import hashlib
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import openai

from deploy.local.stack import Stack
from schemas import layout
from schemas.artifacts import DatasetCounts
from schemas.base import BundleRef, DatasetRef, Message
from schemas.checkpoint import CheckpointVerified
from schemas.dataset import DatasetReady
from schemas.deployment import DeploymentReady, ReplicaAddress, ReplicaReady
from schemas.envelope import Envelope, to_headers
from schemas.evaluation import EvalPassed
from schemas.job import JobQueued, JobRunning, JobScheduled, JobSubmitted, JobSucceeded
from schemas.model import BaseModelRegistered, DeploymentApproved, ModelPromoted, ModelRegistered, Stage
from schemas.node import AllocatedNode, NodesProvisioned
from schemas.specification import JobSpec, Recipe, Tier
from schemas.training import (
    BundleKind,
    BundleMetrics,
    CheckpointWritten,
    StepMetrics,
    StepsRecorded,
    TrainingPrepared,
)
from services.gateway import access, store
from services.provisioner.model import node_id
from shared.clock import utc_now
from shared.messaging.kafka import kafka_producer
from shared.storage.s3 import S3ObjectStore
from tests.builders import NOON, a_file_ref, a_job_spec, a_preparation, a_sha
from tests.integration.gateway import replica_answers
from tests.integration.voices import Ear, Voices, ear, voices
from tests.node_keys import signer_of
from tests.waiting import until

MEASURED = BundleMetrics(train_loss=2.0, valid_loss=2.5)
MAX_UPLOAD_BYTES = 1024 * 1024
ENV = {
    "GATEWAY_MAX_UPLOAD_BYTES": str(MAX_UPLOAD_BYTES),
    "GATEWAY_COMMAND_WAIT_SECONDS": "3",
    "GATEWAY_ROUTE_WAIT_SECONDS": "8",
    "GATEWAY_WEBHOOK_ALLOW_HTTP": "true",
    "GATEWAY_WEBHOOK_ALLOWED_NETWORKS": '["127.0.0.0/8"]',
    "GATEWAY_WEBHOOK_RETRY_SECONDS": "0.3",
    "GATEWAY_WEBHOOK_TIMEOUT_SECONDS": "5",
}
ROW = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'

numbers = itertools.count(1)


def mark() -> str:
    """Of ids that no other test has."""
    return f"{uuid4().hex[:8]}{next(numbers)}"


class World:
    def __init__(self, stack: Stack, speaking: Voices, heard: Ear, db: asyncpg.Connection) -> None:
        self.stack = stack
        self.voices = speaking
        self.ear = heard
        self.db = db
        self.keys: dict[str, str] = {}
        self.base_name = f"tiny-{mark()}"
        self.base_sha = a_sha(self.base_name)
        self.http = httpx.AsyncClient(base_url=stack.url("gateway"), timeout=60.0)

    async def close(self) -> None:
        await self.http.aclose()
        await self.db.close()

    def client(self, tenant: str = "demo", *, retries: int = 0) -> openai.AsyncOpenAI:
        url = self.stack.url("gateway", "/v1")
        return openai.AsyncOpenAI(base_url=url, api_key=self.keys[tenant], max_retries=retries)

    async def ask(self, method: str, path: str, *, tenant: str = "demo", **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[tenant]}"} | options.pop("headers", {})
        return await self.http.request(method, f"/v1{path}", headers=headers, **options)

    async def upload(self, tenant: str = "demo", *, content: bytes = ROW, name: str = "rows.jsonl") -> Any:
        answer = await self.ask(
            "POST", "/files", tenant=tenant, files={"file": (name, content)}, data={"purpose": "fine-tune"}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def register_base(self) -> None:
        await self.voices.say("registry", self.registered_base())
        await until(lambda: self.is_consumed("model.events", self.base_name, 1), "the base model")

    def registered_base(self) -> BaseModelRegistered:
        return BaseModelRegistered(
            name=self.base_name,
            base_sha=self.base_sha,
            manifest_sha256=a_sha("manifest"),
            source="directory",
            template_sha256=a_sha("template"),
            context_tokens=512,
            num_parameters=1,
        )

    async def know_suites(self) -> None:
        """One for each check: other tests of this stack start an evaluator, which says that it requires some."""
        suites = [("any", True, {}), ("harm", False, {}), ("harmless", False, {"expects": "answer"})]
        query = """INSERT INTO suite (name, is_benchmark, digest, rows, detail, registered_at)
                   VALUES ($1, $2, 'x', 1000, $3::jsonb, now()) ON CONFLICT DO NOTHING"""
        for name, is_benchmark, detail in suites:
            await self.db.execute(query, name, is_benchmark, json.dumps(detail))

    async def is_consumed(self, topic: str, key: str, sequence: int) -> bool:
        query = "SELECT sequence >= $3 FROM position WHERE topic = $1 AND aggregate_id = $2"
        return bool(await self.db.fetchval(query, topic, key, sequence))

    def spec(self, **changes: Any) -> JobSpec:
        return a_job_spec(base_model=self.base_name, base_sha=self.base_sha, **changes)

    async def a_running_job(
        self, tenant: str = "demo", *, job_id: str = "", recipe: Recipe | None = None
    ) -> str:
        """As far as its first checkpoint, told by the scheduler, the trainer and the runner."""
        job_id = job_id or f"ftjob-{mark()}"
        bundle = BundleRef(attempt=1, step=10, manifest_sha256=a_sha(job_id))
        dataset = DatasetRef(version=a_sha("version"), manifest_sha256=a_sha("manifest"))
        of_job = {"job_id": job_id, "tenant": tenant}
        spec = self.spec(training_file=a_file_ref(), recipe=recipe)
        queued = JobQueued(
            **of_job, dataset=dataset, config_hash=a_sha("config"), num_steps=40, waiting_for="capacity"
        )
        scheduled = a_booking(job_id, spec, "cpu-spot", tenant=tenant)
        submitted = JobSubmitted(**of_job, dataset_id=f"ds-{job_id}", spec=spec, submitted_at=utc_now())
        await self.voices.say("scheduler", submitted, queued, scheduled, JobRunning(**of_job, attempt=1))
        await self.provision(job_id, tenant)
        written = CheckpointWritten(
            **of_job, attempt=1, bundle=bundle, kind=BundleKind.PERIODIC, metrics=MEASURED.by_name
        )
        prepared = TrainingPrepared(**of_job, attempt=1, preparation=a_preparation())
        await self.voices.say("trainer_agent", prepared, written)
        await self.voices.say(
            "checkpoint_watcher", CheckpointVerified(**of_job, bundle=bundle, size_bytes=10)
        )
        await self.record(StepsRecorded(**of_job, attempt=1, steps=(a_step(10),)))
        await until(lambda: self._is_known(job_id), f"the read models of {job_id}")
        return job_id

    async def provision(
        self, job_id: str, tenant: str = "demo", *, attempt: int = 1, pool: str = "cpu-spot"
    ) -> None:
        """Give the attempt a node, without a price, and with the key of `signer_of`."""
        node = AllocatedNode(
            node_id=node_id(layout.attempt_name(job_id, attempt), 0),
            index=0,
            price_per_hour=Decimal(0),
            allocated_at=utc_now(),
            public_key=signer_of(job_id, attempt).public_key,
        )
        of_pool = {"pool": pool, "capacity_type": "spot"}
        held = NodesProvisioned(job_id=job_id, tenant=tenant, attempt=attempt, **of_pool, nodes=(node,))
        await self.voices.say("provisioner", held)

    async def record(self, message: StepsRecorded) -> str:
        """Say it as the runner of the attempt's node 0 does. Return the event's id."""
        return await self.voices.say("runner", message, signer=signer_of(message.job_id, message.attempt))

    async def _is_known(self, job_id: str) -> bool:
        query = """SELECT (SELECT state = 'running' FROM job WHERE job_id = $1)
                      AND (SELECT preparation IS NOT NULL FROM job WHERE job_id = $1)
                      AND EXISTS (SELECT FROM checkpoint WHERE job_id = $1 AND state = 'verified' AND kind <> '')
                      AND EXISTS (SELECT FROM step WHERE job_id = $1)"""
        return bool(await self.db.fetchval(query, job_id))

    async def newest_event(self, tenant: str = "demo") -> str:
        """Id of the newest event that is kept for the tenant."""
        newest = "SELECT 'event-' || max(number) FROM recent_event WHERE tenant = $1"
        return str(await until(lambda: self.db.fetchval(newest, tenant), f"an event of {tenant}"))

    async def a_dataset(self, tenant: str = "demo", *, report: bytes = b"{}", **changes: Any) -> str:
        """Ready; `changes`: of the fact that says so."""
        dataset_id = f"ds-{mark()}"
        fact = DatasetReady(
            dataset_id=dataset_id,
            tenant=tenant,
            dataset_version=a_sha(dataset_id),
            manifest_sha256=a_sha("manifest"),
            base_sha=self.base_sha,
            template_sha256=a_sha("template"),
            counts=DatasetCounts(rows=1, windows=1, tokens=1, loss_tokens=1),
            benchmarks={},
            suites={},
        ).model_copy(update=changes)
        await self.voices.say("ingest", fact)
        await until(lambda: self.is_consumed("dataset.events", dataset_id, 1), "the dataset")
        await self.objects.put_bytes(layout.dataset(a_sha(dataset_id), "report.json"), report)
        return dataset_id

    async def a_version(self, tenant: str = "demo", *, job_id: str = "", **changes: Any) -> ModelRegistered:
        """A gated version in staging, not deployed."""
        number = mark()
        full_name = f"ft:{self.base_name}:{tenant}:x:{number}"
        bundle = BundleRef(attempt=1, step=10, manifest_sha256=a_sha(number))
        fact = ModelRegistered(
            model_id=f"mv-{number}",
            tenant=tenant,
            job_id=job_id or f"ftjob-{number}",
            digest=a_sha(number),
            kind="adapter",
            rank=8,
            dataset_version=a_sha("version"),
            config_hash=a_sha("config"),
            template_sha256=a_sha("template"),
            **{
                "full_name": full_name,
                "bundle": bundle,
                "base_model": self.base_name,
                "base_sha": self.base_sha,
            }
            | changes,
        )
        common = fact.model_dump(include={"model_id", "tenant", "job_id", "digest"})
        passed = EvalPassed(**common, eval_id=f"eval-{number}", base_sha=fact.base_sha, checks=())
        promoted = ModelPromoted(
            **common, full_name=fact.full_name, stage=Stage.STAGING, eval_id=f"eval-{number}"
        )
        await self.voices.say("evaluator", passed)
        await self.voices.say("registry", fact, promoted)
        await until(lambda: self.is_consumed("model.events", fact.model_id, 2), "the version")
        return fact

    def approved(self, version: ModelRegistered, generation: int = 1, slot: str = "") -> DeploymentApproved:
        return DeploymentApproved(
            slot=slot or version.full_name,
            tenant=version.tenant,
            generation=generation,
            model_id=version.model_id,
            job_id=version.job_id,
            kind="adapter",
            digest=version.digest,
            base_model=version.base_model,
            base_sha=version.base_sha,
            eval_id="eval-1",
            rank=8,
        )

    def ready(
        self, version: ModelRegistered, *replicas: ReplicaAddress, generation: int = 1, slot: str = ""
    ) -> DeploymentReady:
        return DeploymentReady(
            pool=f"serve-{self.base_sha[:12]}",
            base_sha=version.base_sha,
            slot=slot or version.full_name,
            tenant=version.tenant,
            digest=version.digest,
            generation=generation,
            model_id=version.model_id,
            served_name=f"{version.full_name}@{version.digest}",
            replicas=replicas,
        )

    def succeeded(self, version: ModelRegistered) -> JobSucceeded:
        return JobSucceeded(
            job_id=version.job_id,
            tenant=version.tenant,
            fine_tuned_model=version.full_name,
            model_id=version.model_id,
            promoted=True,
            deployed=True,
            message="done",
        )

    async def serve(self, version: ModelRegistered, *replicas: "Replica") -> None:
        """Route the version's full name to these replicas."""
        await self.voices.say("registry", self.approved(version))
        ready = self.ready(version, *(replica.address for replica in replicas))
        for replica in replicas:
            await self.announce(replica)
        await self.voices.say("serving_controller", ready)
        await until(lambda: self.state_of(version.full_name, "ready"), f"the route of {version.full_name}")

    async def announce(self, replica: "Replica", *, has_base: bool = False) -> None:
        """`has_base`: whether it answers for the base model, too."""
        fact = ReplicaReady(
            pool=f"serve-{self.base_sha[:12]}",
            base_sha=self.base_sha if has_base else a_sha("a base that nobody asks for"),
            replica=replica.address,
            base_model=self.base_name if has_base else "nobody",
            served_base=f"{self.base_name}@{self.base_sha}" if has_base else "nobody",
        )
        await self.voices.say("serving_controller", fact)

    async def state_of(self, slot: str, state: str) -> bool:
        return bool(await self.db.fetchval("SELECT state = $2 FROM route WHERE slot = $1", slot, state))

    async def command(self, tenant: str, message: Message, *, event_id: str = "") -> str:
        """Send it as the tenant's own Kafka user; the event's id."""
        user = f"tenant-{tenant}"
        envelope = Envelope(
            id=event_id or uuid4().hex,
            type=message.type,
            version=message.version,
            source=f"/{user}",
            time=utc_now(),
            key=message.key,
        )
        password = self.stack.kafka_password(user)
        async with kafka_producer(self.stack.kafka_bootstrap, user, password, client_id=user) as producer:
            await producer.send_and_wait(
                f"tenant.{tenant}.commands",
                value=message.model_dump_json().encode(),
                key=message.key.encode(),
                headers=to_headers(envelope),
            )
        return envelope.id

    async def heard(self, key: str, name: str) -> Any:
        """The delivery of the newest message of this type and key."""
        await self.ear.until_any(key, name)
        return next(each for each in reversed(self.ear.heard[key]) if each.message.type == name)

    @property
    def objects(self) -> S3ObjectStore:
        key = self.stack.s3_credentials("root")
        return S3ObjectStore(
            self.stack.s3_endpoint, key.access_key, key.secret_key, bucket=self.stack.s3_bucket
        )

    @property
    def keys_dir(self) -> Path:
        return Path(self.stack.service_env("gateway")["GATEWAY_REPLICA_KEYS_DIR"])


class Replica:
    """An HTTP server that answers a completion in the way it is told to."""

    def __init__(self, keys_dir: Path, *, way: str = "answer") -> None:
        self.id = f"replica-{mark()}"
        self.way = way
        self.words = ("an ", "answer")
        """What it answers in a stream, each as a token."""
        self.was_left = False
        """Whether somebody went before the whole answer was there."""
        self.asked: list[dict[str, Any]] = []
        self._keys_dir = keys_dir
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._keys_dir.mkdir(parents=True, exist_ok=True)
        (self._keys_dir / self.id).write_text(f"key of {self.id}")

    async def stop(self) -> None:
        """Nothing listens afterwards; the address stays."""
        assert self._server is not None
        self._port = self.address.url.rpartition(":")[2]
        self._server.close()
        await self._server.wait_closed()

    @property
    def address(self) -> ReplicaAddress:
        assert self._server is not None
        sockets = self._server.sockets
        port = sockets[0].getsockname()[1] if sockets else self._port
        return ReplicaAddress(replica_id=self.id, incarnation="1", url=f"http://127.0.0.1:{port}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        assert f"bearer key of {self.id}" in head
        self.asked.append(body)
        writer.write(self._answer(body["model"]))
        await writer.drain()
        if self.way == "stall":
            await reader.read()
            self.was_left = True
        writer.close()
        await writer.wait_closed()

    def _answer(self, model: str) -> bytes:
        answer = {"object": "chat.completion", "model": model, "choices": []}
        match self.way:
            case "answer":
                return replica_answers.response(200, json.dumps(answer).encode())
            case "stream":
                return replica_answers.events(replica_answers.words_in_pieces(model, self.words))
            case "call a tool":
                call = {
                    "id": "call-1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": "{}"},
                }
                message = {"role": "assistant", "content": None, "tool_calls": [call]}
                choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
                return replica_answers.response(200, json.dumps(answer | {"choices": [choice]}).encode())
            case "call a tool in a stream":
                return replica_answers.events(replica_answers.call_in_pieces(model))
            case "die":
                return b""
            case "die in a stream":
                return replica_answers.unfinished([answer])
            case "stall":
                return replica_answers.unfinished(replica_answers.words_in_pieces(model, self.words)[:-2])
            case "break":
                return replica_answers.response(500, b'{"error": {"message": "EngineDeadError"}}')
            case "forget":
                return replica_answers.response(404, b'{"error": {"message": "no such model"}}')
            case "refuse":
                return replica_answers.response(400, b'{"error": {"message": "too long", "code": 400}}')
        raise AssertionError(self.way)


def a_booking(job_id: str, spec: JobSpec, pool: str, *, tenant: str = "demo") -> JobScheduled:
    return JobScheduled(
        job_id=job_id,
        tenant=tenant,
        attempt=1,
        spec=spec,
        base_sha=spec.base_sha,
        dataset=DatasetRef(version=a_sha("version"), manifest_sha256=a_sha("manifest")),
        config_hash=a_sha("config"),
        resume=None,
        pool=pool,
        capacity_type="spot",
        nodes=1,
        devices_per_node=1,
        grace_seconds=30.0,
        start_deadline=NOON,
    )


def a_step(step: int) -> StepMetrics:
    return StepMetrics(
        step=step,
        time=utc_now(),
        loss=2.0,
        learning_rate=1e-4,
        grad_norm=1.0,
        num_tokens=100,
        tokens_per_second=10.0,
        memory_bytes=1,
        epoch=0.5,
    )


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@asynccontextmanager
async def met(stack: Stack) -> AsyncIterator[World]:
    """On a stack whose gateway runs."""
    topics = (
        "job.commands", "dataset.commands", "model.commands", "eval.commands", "tenant.events", "parked.gateway",
        "deployment.commands", "sweep.commands", "cost.commands", "alert.commands",
    )  # fmt: skip
    async with AsyncExitStack() as closing:
        speaking = await closing.enter_async_context(voices(stack))
        heard = await closing.enter_async_context(ear(stack, *topics))
        world = World(stack, speaking, heard, await asyncpg.connect(stack.postgres_dsn("gateway")))
        closing.push_async_callback(world.close)
        world.keys["demo"] = stack.operator_env()["RETUNE_API_KEY"]
        world.keys["other"] = await new_key(world, "other")
        await world.register_base()
        await world.know_suites()
        yield world


async def new_key(world: World, tenant: str) -> str:
    """The tenant is made where it lacks, without the login to Kafka that only accounts could make."""
    key = access.new_key()
    await store.add_tenant(world.db, tenant, Tier.STANDARD)
    await store.add_key(world.db, tenant, key)
    return key
