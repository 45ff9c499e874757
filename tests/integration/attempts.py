"""Plays the scheduler for attempts of invented jobs, and reads what comes of them."""

import asyncio
import hashlib
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from deploy.local.stack import Stack
from schemas import layout
from schemas.artifacts import BaseModelManifest, DatasetCounts, DatasetManifest, FileEntry, files_digest
from schemas.base import BundleRef, CapacityType, DatasetRef, FileRef, Message
from schemas.job import JobScheduled, JobStopping, StopReason
from schemas.node import AllocatedNode, NodesProvisioned
from schemas.specification import DatasetFormat, JobSpec, Method
from schemas.topics import (
    AGENT_DIRECTIVES,
    AGENT_REPORTS,
    NODE_EVENTS,
    RUN_METRICS,
    TRAINING_EVENTS,
)
from services.provisioner.model import node_id
from shared.clock import utc_now
from shared.messaging.delivery import Delivery
from shared.messaging.login import Login
from shared.messaging.reader import TopicReader
from shared.signatures import PrivateKey
from shared.storage.objects import put_manifest
from shared.storage.s3 import S3ObjectStore
from tests.integration.voices import Voices, voices
from tests.node_keys import NODE_KEYS
from tests.waiting import PATIENCE_SECONDS

FAKE_CHILD = Path(__file__).with_name("fake_child.py")
REPOSITORY = Path(__file__).parents[2]
NOWHERE = "nowhere"
"""A pool that no provisioner has. One that starts in a later file of the same stack reads the topic from its start, and
would give the attempts of this one its nodes."""
TENANT = "demo"
SHA = "a" * 64

M = TypeVar("M", bound=Message)


class Attempts:
    """One per test module: `async with Attempts.on(stack) as attempts`."""

    def __init__(self, stack: Stack, objects: S3ObjectStore, voices: Voices, pool: str) -> None:
        self.stack = stack
        self.objects = objects
        self.voices = voices
        self.pool = pool
        self._heard: list[Delivery] = []
        self._base_sha = ""
        self._dataset: DatasetRef | None = None

    @classmethod
    @asynccontextmanager
    async def on(cls, stack: Stack, *, pool: str = NOWHERE) -> AsyncIterator["Attempts"]:
        """`pool`: of attempts for which a test names none."""
        key = stack.s3_credentials("root")
        objects = S3ObjectStore(stack.s3_endpoint, key.access_key, key.secret_key, bucket=stack.s3_bucket)
        login = Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"))
        topics = (AGENT_REPORTS, AGENT_DIRECTIVES, TRAINING_EVENTS, NODE_EVENTS, RUN_METRICS)
        async with (
            voices(stack) as voice,
            TopicReader(login, [topic.name for topic in topics], from_end=True) as reader,
        ):
            attempts = cls(stack, objects, voice, pool)
            await attempts._put_inputs()
            listening = asyncio.create_task(attempts._listen(reader))
            yield attempts
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def schedule(self, job_id: str = "", *, attempt: int = 1, **changes: Any) -> JobScheduled:
        """Write JobScheduled as the scheduler does."""
        event = self.a_schedule(job_id, attempt=attempt, **changes)
        await self.write("scheduler", event)
        return event

    def a_schedule(self, job_id: str = "", *, attempt: int = 1, **changes: Any) -> JobScheduled:
        assert self._dataset is not None, "inputs are put first"
        file = FileRef(file_id="file-1", sha256=SHA, size_bytes=1)
        fields = {
            "job_id": job_id or f"ftjob-{uuid4().hex[:8]}",
            "tenant": TENANT,
            "attempt": attempt,
            "spec": JobSpec(base_model="tiny", base_sha=self._base_sha, training_file=file),
            "base_sha": self._base_sha,
            "dataset": self._dataset,
            "config_hash": SHA,
            "resume": None,
            "pool": self.pool,
            "capacity_type": CapacityType.SPOT,
            "nodes": 1,
            "devices_per_node": 1,
            "grace_seconds": 30.0,
            "start_deadline": utc_now() + timedelta(minutes=5),
        }
        return JobScheduled(**fields | changes)

    async def provision(self, scheduled: JobScheduled, *, has_keys: bool = True) -> None:
        """Write NodesProvisioned as the provisioner does, with the keys of `NODE_KEYS`, or as an older one did."""
        name = layout.attempt_name(scheduled.job_id, scheduled.attempt)
        nodes = tuple(
            AllocatedNode(
                node_id=node_id(name, index),
                index=index,
                price_per_hour=Decimal(1),
                allocated_at=utc_now(),
                public_key=NODE_KEYS.public(name, index) if has_keys else None,
            )
            for index in range(scheduled.nodes)
        )
        who = {"job_id": scheduled.job_id, "tenant": scheduled.tenant, "attempt": scheduled.attempt}
        pool = {"pool": scheduled.pool, "capacity_type": scheduled.capacity_type}
        await self.write("provisioner", NodesProvisioned(**who, **pool, nodes=nodes))

    async def stop(
        self, scheduled: JobScheduled, *, seconds: float = 30, reason: StopReason = StopReason.CANCEL
    ) -> None:
        """Write JobStopping as the scheduler does."""
        deadline = utc_now() + timedelta(seconds=seconds)
        await self.write(
            "scheduler",
            JobStopping(
                job_id=scheduled.job_id,
                tenant=scheduled.tenant,
                attempt=scheduled.attempt,
                reason=reason,
                deadline=deadline,
            ),
        )

    async def write(self, user: str, *messages: Message, signer: PrivateKey | None = None) -> None:
        """Put messages on their topics as `user`, numbered as their stories demand."""
        await self.voices.say(user, *messages, signer=signer)

    def heard(self, job_id: str, message: type[M], /, **fields: Any) -> list[M]:
        """Messages of that type about the job so far, in order, whose fields are so."""
        return [
            delivery.message
            for delivery in self._heard
            if delivery.envelope.key == job_id
            and isinstance(delivery.message, message)
            and all(getattr(delivery.message, name) == value for name, value in fields.items())
        ]

    def story(self, job_id: str, topic: str) -> list[str]:
        """Types of the job's messages on a topic, in order."""
        return [
            delivery.message.type
            for delivery in self._heard
            if delivery.envelope.key == job_id and delivery.topic.name == topic
        ]

    def report_ids(self, job_id: str, kind: type[Message]) -> list[str]:
        return [
            delivery.envelope.id
            for delivery in self._heard
            if delivery.envelope.key == job_id and isinstance(delivery.message, kind)
        ]

    def requests(self, job_id: str, kind: type[Message]) -> set[str]:
        """Correlation ids of messages of this type about the job."""
        return {
            delivery.envelope.correlation_id
            for delivery in self._heard
            if delivery.envelope.key == job_id and isinstance(delivery.message, kind)
        }

    async def until(
        self,
        job_id: str,
        message: type[M],
        /,
        *,
        seconds: float = PATIENCE_SECONDS,
        times: int = 1,
        **fields: Any,
    ) -> M:
        """The message, once it was heard so many times; the job's whole story where it was not."""
        try:
            async with asyncio.timeout(seconds):
                while len(messages := self.heard(job_id, message, **fields)) < times:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            story = [delivery.message for delivery in self._heard if delivery.envelope.key == job_id]
            raise AssertionError(
                f"no {message.type} {fields} of {job_id} in {seconds:g} s: {story}"
            ) from None
        return messages[times - 1]

    async def log(self, scheduled: JobScheduled, *, node: int = 0) -> str:
        """All chunks of a node's log, as `retune jobs logs` reads them."""
        chunks = []
        for number in itertools.count():
            key = layout.log(scheduled.job_id, scheduled.attempt, node, number)
            if await self.objects.head(key) is None:
                return b"".join(chunks).decode()
            chunks.append(await self.objects.get_bytes(key))
        raise AssertionError("the count has no end")

    async def bundle_state(self, job_id: str, ref: BundleRef) -> dict[str, Any]:
        """The content of a stored bundle's first part, after its manifest was verified."""
        key = layout.checkpoint(job_id, ref.attempt, ref.step)
        manifest = json.loads(await self.objects.get_bytes(key, sha256=ref.manifest_sha256))
        part = manifest["parts"][0]
        stored = layout.checkpoint(job_id, ref.attempt, ref.step, layout.part(part["sha256"]))
        state: dict[str, Any] = json.loads(await self.objects.get_bytes(stored, sha256=part["sha256"]))
        return state

    async def _listen(self, reader: TopicReader) -> None:
        async for delivery in reader.follow():
            assert isinstance(delivery, Delivery), f"unreadable: {delivery}"
            self._heard.append(delivery)

    async def _put_inputs(self) -> None:
        """A base model of one file and a dataset of one part; the fake child reads neither."""
        config = FileEntry(path="config.json", size_bytes=2, sha256=hashlib.sha256(b"{}").hexdigest())
        self._base_sha = files_digest((config,))
        await self.objects.put_bytes(layout.base_model(self._base_sha, "files/config.json"), b"{}")
        base = BaseModelManifest(
            name="tiny",
            source="directory",
            files=(config,),
            template_sha256=SHA,
            context_tokens=8,
            num_parameters=1,
        )
        await put_manifest(self.objects, layout.base_model(self._base_sha), base)
        await self._put_dataset()

    async def _put_dataset(self) -> None:
        data = uuid4().hex.encode()
        sha256 = hashlib.sha256(data).hexdigest()
        part = FileEntry(path=layout.part(sha256), size_bytes=len(data), sha256=sha256)
        version = hashlib.sha256(sha256.encode()).hexdigest()
        await self.objects.put_bytes(layout.dataset(version, part.path), data)
        manifest = DatasetManifest(
            version=version,
            tenant=TENANT,
            base_sha=self._base_sha,
            template_sha256=SHA,
            format=DatasetFormat.CHAT,
            method=Method.LORA,
            max_seq_length=8,
            counts=DatasetCounts(rows=1, windows=1, tokens=1, loss_tokens=1),
            training=(part,),
            report=part,
            rules_version=1,
        )
        digest = await put_manifest(self.objects, layout.dataset(version), manifest)
        self._dataset = DatasetRef(version=version, manifest_sha256=digest)
