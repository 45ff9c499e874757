"""Plays gateway, scheduler and registry for the evaluator, and reads what it says."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from deploy.local.stack import Stack
from schemas import layout
from schemas.base import BundleRef, DatasetRef, FileRef, Message
from schemas.evaluation import EvalFact, EvalProgressed
from schemas.gate import GateSpec
from schemas.job import JobEvaluating
from schemas.model import ModelRegistered
from schemas.topics import EVAL_EVENTS
from shared.messaging.delivery import Delivery
from shared.messaging.login import Login
from shared.messaging.reader import TopicReader
from shared.storage.s3 import S3ObjectStore
from tests.integration.voices import Voices, voices
from tests.stored import put_model

TENANT = "demo"
PATIENCE_SECONDS = 500.0


class World:
    def __init__(self, stack: Stack, objects: S3ObjectStore, voices: Voices) -> None:
        self.stack = stack
        self.objects = objects
        self.heard: list[Delivery] = []
        self._voices = voices

    @classmethod
    @asynccontextmanager
    async def on(cls, stack: Stack) -> AsyncIterator["World"]:
        key = stack.s3_credentials("root")
        objects = S3ObjectStore(stack.s3_endpoint, key.access_key, key.secret_key, bucket=stack.s3_bucket)
        login = Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"))
        async with (
            voices(stack) as voice,
            TopicReader(login, [EVAL_EVENTS.name], from_end=True) as reader,
        ):
            world = cls(stack, objects, voice)
            listening = asyncio.create_task(world._listen(reader))
            yield world
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, reader: TopicReader) -> None:
        async for delivery in reader.follow():
            assert isinstance(delivery, Delivery), delivery
            known = {(each.envelope.id) for each in self.heard}
            if delivery.envelope.id not in known:
                self.heard.append(delivery)

    async def send(self, user: str, message: Message, *, event_id: str = "") -> str:
        """Put a message on its topic as `user`; numbered where its story demands it."""
        return await self._voices.say(user, message, event_id=event_id)

    async def until(self, condition: Callable[[Message], bool], what: str) -> Any:
        """The first event of the evaluator that fulfils the condition."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for delivery in self.heard:
                    if condition(delivery.message):
                        return delivery.message
                await asyncio.sleep(0.1)
        raise AssertionError(f"waited for {what}")

    def about(self, job_id: str) -> list[EvalFact]:
        """Every fact about a job's evaluations, in order, but how far they were: nothing follows from that."""
        facts = [delivery.message for delivery in self.heard if isinstance(delivery.message, EvalFact)]
        return [fact for fact in facts if fact.job_id == job_id and not isinstance(fact, EvalProgressed)]

    def progress_of(self, job_id: str) -> list[EvalProgressed]:
        facts = [delivery.message for delivery in self.heard if isinstance(delivery.message, EvalProgressed)]
        return [each for each in facts if each.job_id == job_id]

    async def put_rows(self, rows: list[dict[str, Any]] | bytes, *, upload: bool = True) -> FileRef:
        raw = rows if isinstance(rows, bytes) else "".join(json.dumps(row) + "\n" for row in rows).encode()
        digest = hashlib.sha256(raw).hexdigest()
        if upload:
            await self.objects.put_bytes(layout.blob(digest), raw)
        return FileRef(file_id=f"file-{digest[:8]}", sha256=digest, size_bytes=len(raw))

    async def put_model(self, directory: Path, *, base_sha: str, job_id: str, bundle: BundleRef) -> str:
        """As the registry copies an artifact."""
        return await put_model(self.objects, directory, base_sha=base_sha, job_id=job_id, bundle=bundle)


def a_job(
    *,
    base_sha: str,
    template_sha256: str,
    holdout: FileRef | None = None,
    gate: GateSpec | None = None,
    benchmarks: dict[str, str] | None = None,
    suites: dict[str, str] | None = None,
    kept_leaks: dict[str, int] | None = None,
) -> JobEvaluating:
    """JobEvaluating of an invented job."""
    job_id = f"ftjob-{uuid4().hex[:12]}"
    digest = hashlib.sha256(job_id.encode()).hexdigest()
    return JobEvaluating(
        job_id=job_id,
        tenant=TENANT,
        attempt=1,
        bundle=BundleRef(attempt=1, step=10, manifest_sha256=digest),
        dataset=DatasetRef(version=digest, manifest_sha256=digest),
        config_hash=digest,
        base_model="tiny",
        base_sha=base_sha,
        template_sha256=template_sha256,
        kind="adapter",
        rank=8,
        full_name=f"ft:tiny:{TENANT}:x:",
        auto_deploy=True,
        holdout=holdout,
        gate=gate or GateSpec(),
        kept_leaks=kept_leaks or {},
        benchmarks=benchmarks or {},
        suites=suites or {},
    )


def its_version(job: JobEvaluating, digest: str) -> ModelRegistered:
    return ModelRegistered(
        model_id=f"mv-{job.job_id}",
        tenant=job.tenant,
        job_id=job.job_id,
        digest=digest,
        full_name=job.full_name + digest[:12],
        kind=job.kind,
        rank=job.rank,
        base_model=job.base_model,
        base_sha=job.base_sha,
        dataset_version=job.dataset.version,
        config_hash=job.config_hash,
        template_sha256=job.template_sha256,
        bundle=job.bundle,
    )
