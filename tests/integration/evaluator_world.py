"""Plays gateway, scheduler and registry for the evaluator, and reads what it says."""

import asyncio
import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from deploy.local.stack import Stack
from schemas import layout
from schemas.artefacts import BaseModelManifest, FileEntry, ModelManifest, files_digest
from schemas.base import BundleRef, DatasetRef, FileRef, Message
from schemas.envelope import Envelope, to_headers
from schemas.evaluation import EvalFact
from schemas.job import JobEvaluating
from schemas.model import ModelRegistered
from schemas.specification import GateSpec
from schemas.topics import EVAL_EVENTS, topic_of
from shared.clock import utc_now
from shared.messaging.delivery import Delivery
from shared.messaging.kafka import kafka_producer
from shared.messaging.reader import Login, TopicReader
from shared.storage.objects import S3ObjectStore, put_manifest, sha256_of

TENANT = "demo"
PATIENCE_SECONDS = 500.0


class World:
    def __init__(self, stack: Stack, objects: S3ObjectStore) -> None:
        self.stack = stack
        self.objects = objects
        self.heard: list[Delivery] = []
        self._numbers: dict[tuple[str, str], Any] = defaultdict(lambda: itertools.count(1))

    @classmethod
    @asynccontextmanager
    async def on(cls, stack: Stack) -> AsyncIterator["World"]:
        key = stack.s3_credentials("root")
        objects = S3ObjectStore(stack.s3_endpoint, key.access_key, key.secret_key, bucket=stack.s3_bucket)
        world = cls(stack, objects)
        login = Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"))
        async with TopicReader(login, [EVAL_EVENTS.name], from_end=True) as reader:
            listening = asyncio.create_task(world._listen(reader))
            yield world
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, reader: TopicReader) -> None:
        async for found in reader.follow():
            assert isinstance(found, Delivery), found
            known = {(each.envelope.id) for each in self.heard}
            if found.envelope.id not in known:
                self.heard.append(found)

    async def send(self, user: str, message: Message, *, event_id: str = "") -> str:
        """Put a message on its topic as `user`; numbered where its story demands it."""
        topic = topic_of(type(message), writer=user)
        event_id = event_id or uuid4().hex
        envelope = Envelope(
            id=event_id,
            type=message.type,
            version=message.version,
            source=f"/retune/{user}",
            time=utc_now(),
            key=message.key,
            sequence=next(self._numbers[topic.name, message.key]) if topic.is_story else None,
        )
        password = self.stack.kafka_password(user)
        async with kafka_producer(self.stack.kafka_bootstrap, user, password, client_id="test") as producer:
            await producer.send_and_wait(
                topic.name,
                value=message.model_dump_json().encode(),
                key=message.key.encode(),
                headers=to_headers(envelope),
            )
        return event_id

    async def until(self, condition: Callable[[Message], bool], what: str) -> Any:
        """The first event of the evaluator that fulfils the condition."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for found in self.heard:
                    if condition(found.message):
                        return found.message
                await asyncio.sleep(0.1)
        raise AssertionError(f"waited for {what}")

    def about(self, job_id: str) -> list[EvalFact]:
        """Every fact about a job's evaluations, in order."""
        messages = [found.message for found in self.heard]
        return [message for message in messages if isinstance(message, EvalFact) and message.job_id == job_id]

    async def put_rows(self, rows: list[dict[str, Any]] | bytes, *, upload: bool = True) -> FileRef:
        raw = rows if isinstance(rows, bytes) else "".join(json.dumps(row) + "\n" for row in rows).encode()
        digest = hashlib.sha256(raw).hexdigest()
        if upload:
            await self.objects.put_bytes(layout.blob(digest), raw)
        return FileRef(file_id=f"file-{digest[:8]}", sha256=digest, size_bytes=len(raw))

    async def put_base(self, directory: Path, *, template_sha256: str) -> str:
        files = await self._put_files(directory, lambda sha, path: layout.base_model(sha, layout.file(path)))
        sha = files_digest(files)
        manifest = BaseModelManifest(
            name="tiny",
            source="directory",
            files=files,
            template_sha256=template_sha256,
            context_tokens=512,
            num_parameters=1,
        )
        await put_manifest(self.objects, layout.base_model(sha), manifest)
        return sha

    async def put_model(self, directory: Path, *, base_sha: str, job_id: str, bundle: BundleRef) -> str:
        """As the registry copies an artefact; a digest that is there already stays as it is."""
        files = await self._put_files(directory, lambda digest, path: layout.model(digest, layout.file(path)))
        digest = files_digest(files)
        if await self.objects.head(layout.model(digest)) is None:
            manifest = ModelManifest(
                kind="adapter", files=files, base_sha=base_sha, source=bundle, job_id=job_id
            )
            await put_manifest(self.objects, layout.model(digest), manifest)
        return digest

    async def _put_files(self, directory: Path, key_of: Callable[[str, str], str]) -> tuple[FileEntry, ...]:
        files = tuple(
            FileEntry(path=path.name, size_bytes=path.stat().st_size, sha256=sha256_of(path))
            for path in sorted(directory.iterdir())
        )
        for entry in files:
            key = key_of(files_digest(files), entry.path)
            await self.objects.put_file(key, directory / entry.path, sha256=entry.sha256)
        return files


def a_job(
    *,
    base_sha: str,
    template_sha256: str,
    holdout: FileRef | None = None,
    gate: GateSpec | None = None,
    benchmarks: dict[str, str] | None = None,
    suites: dict[str, str] | None = None,
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
