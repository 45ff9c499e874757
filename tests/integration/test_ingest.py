"""Ingest on real Kafka, Postgres and S3: from SubmitDataset to its answer, and to the end of the bytes."""

import asyncio
import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas import layout
from schemas.artifacts import BaseModelManifest, DatasetManifest, FileEntry, files_digest
from schemas.base import CommandRefused, DatasetRef, FileRef, Message
from schemas.dataset import (
    DatasetAccepted,
    DatasetDeleted,
    DatasetReady,
    DatasetRejected,
    DeleteDataset,
    SubmitDataset,
)
from schemas.evaluation import BenchmarkKind, BenchmarkRegistered
from schemas.job import JobScheduled, JobSucceeded
from schemas.model import BaseModelRegistered
from schemas.report import DatasetReport
from schemas.specification import DatasetSpec
from schemas.topics import DATASET_EVENTS
from shared.clock import utc_now
from shared.messaging.delivery import Delivery
from shared.messaging.login import Login
from shared.messaging.reader import TopicReader
from shared.storage.objects import get_manifest, put_manifest
from shared.storage.s3 import S3ObjectStore
from tests.builders import a_job_spec, a_sha
from tests.chaos.scale import at_night
from tests.integration.voices import Voices, voices
from tests.parquet import parquet_of
from tests.tiny_model import save_tokenizer
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.stack

TENANT = "demo"
CONTEXT = 256

M = TypeVar("M", bound=Message)


def chat_file(*, seed: int, count: int = 20) -> bytes:
    rng = random.Random(seed)
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"What is {rng.random()} and {rng.random()}?"},
                {"role": "assistant", "content": f"It is {rng.random()} {rng.random()} {rng.random()}."},
            ]
        }
        for _ in range(count)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


class Requests:
    """Plays everybody around ingest, and reads what it says."""

    def __init__(
        self, stack: Stack, objects: S3ObjectStore, db: asyncpg.Connection, voices: Voices, directory: Path
    ) -> None:
        self.stack = stack
        self.objects = objects
        self.db = db
        self._directory = directory
        self._voices = voices
        self._heard: list[Delivery] = []
        self._ids: set[str] = set()
        self._grown = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def on(cls, stack: Stack, directory: Path) -> AsyncIterator["Requests"]:
        key = stack.s3_credentials("root")
        objects = S3ObjectStore(stack.s3_endpoint, key.access_key, key.secret_key, bucket=stack.s3_bucket)
        db = await asyncpg.connect(stack.postgres_dsn("ingest"))
        login = Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"))
        async with (
            voices(stack) as voice,
            TopicReader(login, [DATASET_EVENTS.name], from_end=True) as reader,
        ):
            requests = cls(stack, objects, db, voice, directory)
            listening = asyncio.create_task(requests._listen(reader))
            yield requests
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        await db.close()

    async def write(self, user: str, message: Message, *, event_id: str = "") -> None:
        await self._voices.say(user, message, event_id=event_id)

    async def file(self, content: bytes) -> FileRef:
        sha256 = await self.objects.put_bytes(layout.blob(hashlib.sha256(content).hexdigest()), content)
        return FileRef(file_id=f"file-{sha256[:8]}", sha256=sha256, size_bytes=len(content))

    async def base_model(self) -> BaseModelRegistered:
        """A base model in S3, with a tokenizer of its own; not announced yet."""
        name = uuid4().hex
        directory = self._directory / name
        save_tokenizer(
            directory, text=f"{name} 0.123456789 What is and It", vocab_size=300, context_tokens=CONTEXT
        )
        contents = {path.name: path.read_bytes() for path in directory.iterdir()}
        files = tuple(
            FileEntry(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            for path, data in contents.items()
        )
        sha = files_digest(files)
        for path, data in contents.items():
            await self.objects.put_bytes(layout.base_model(sha, layout.file(path)), data)
        template = hashlib.sha256(contents["chat_template.jinja"]).hexdigest()
        described = {
            "name": name,
            "source": "directory",
            "template_sha256": template,
            "context_tokens": CONTEXT,
            "num_parameters": 1,
        }
        manifest = BaseModelManifest(files=files, **described)
        digest = await put_manifest(self.objects, layout.base_model(sha), manifest)
        return BaseModelRegistered(base_sha=sha, manifest_sha256=digest, **described)

    async def submit(self, spec: DatasetSpec, *, tenant: str = TENANT, event_id: str = "") -> str:
        dataset_id = f"ds-{uuid4().hex[:12]}"
        command = SubmitDataset(dataset_id=dataset_id, tenant=tenant, spec=spec)
        await self.write("gateway", command, event_id=event_id)
        return dataset_id

    async def until(self, key: str, message: type[M]) -> M:
        """The message about that aggregate, once it is heard."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not (messages := self.heard(key, message)):
                    self._grown.clear()
                    await self._grown.wait()
        except TimeoutError:
            raise AssertionError(f"no {message.type} of {key}: heard {self.story(key)}") from None
        return messages[0]

    def heard(self, key: str, message: type[M]) -> list[M]:
        return [
            each.message
            for each in self._heard
            if each.envelope.key == key and isinstance(each.message, message)
        ]

    def story(self, key: str) -> list[str]:
        return [each.message.type for each in self._heard if each.envelope.key == key]

    async def until_row(self, query: str, *args: object) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (value := await self.db.fetchval(query, *args)):  # noqa: ASYNC110  a table has no event
                await asyncio.sleep(0.05)
        return value

    async def keys(self, version: str) -> set[str]:
        return {head.key for head in await self.objects.list_objects(layout.dataset(version, ""))}

    async def _listen(self, reader: TopicReader) -> None:
        async for delivery in reader.follow():
            # A relay that was killed between send and mark sends a fact again, under its old id.
            if isinstance(delivery, Delivery) and delivery.envelope.id not in self._ids:
                self._ids.add(delivery.envelope.id)
                self._heard.append(delivery)
                self._grown.set()


@pytest.fixture(scope="module")
async def requests(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Requests]:
    await stack.up(("ingest",))
    async with Requests.on(stack, tmp_path_factory.mktemp("bases")) as requests:
        yield requests
    await stack.stop("ingest")


@pytest.fixture(scope="module")
async def base(requests: Requests) -> BaseModelRegistered:
    base = await requests.base_model()
    await requests.write("registry", base)
    return base


async def a_spec(requests: Requests, base: BaseModelRegistered, *, seed: int, **changes: Any) -> DatasetSpec:
    training = changes.pop("training_file", None) or await requests.file(chat_file(seed=seed))
    return DatasetSpec(base_model=base.name, base_sha=base.base_sha, training_file=training, **changes)


async def test_a_dataset_waits_for_its_base_model_and_becomes_a_verified_version(requests: Requests) -> None:
    base = await requests.base_model()
    dataset_id = await requests.submit(await a_spec(requests, base, seed=1))
    await requests.until_row("SELECT true FROM waiting WHERE parent = $1", f"base:{base.base_sha}")
    assert requests.story(dataset_id) == []
    await requests.write("registry", base)
    ready = await requests.until(dataset_id, DatasetReady)
    assert requests.story(dataset_id) == ["DatasetAccepted", "DatasetReady"]
    assert (ready.base_sha, ready.template_sha256) == (base.base_sha, base.template_sha256)
    key = layout.dataset(ready.dataset_version)
    manifest = await get_manifest(requests.objects, key, DatasetManifest, sha256=ready.manifest_sha256)
    assert manifest.counts == ready.counts
    assert manifest.counts.rows == 20
    for entry in (*manifest.training, manifest.report):
        stored = layout.dataset(ready.dataset_version, entry.path)
        await requests.objects.verify(stored, sha256=entry.sha256, size_bytes=entry.size_bytes)


async def test_a_known_version_answers_another_request_by_its_own_id_without_a_run(
    requests: Requests, base: BaseModelRegistered
) -> None:
    spec = await a_spec(requests, base, seed=2)
    first = await requests.until(await requests.submit(spec), DatasetReady)
    revision = "SELECT revision FROM version WHERE id = $1"
    before = await requests.db.fetchval(revision, first.dataset_version)
    again = await requests.submit(spec)
    second = await requests.until(again, DatasetReady)
    assert requests.story(again) == ["DatasetAccepted", "DatasetReady"]
    assert second == first.model_copy(update={"dataset_id": again})
    assert await requests.db.fetchval(revision, first.dataset_version) == before


async def test_two_requests_for_a_version_in_the_making_share_one_run(
    requests: Requests, base: BaseModelRegistered
) -> None:
    spec = await a_spec(requests, base, seed=3)
    ids = [await requests.submit(spec) for _ in range(2)]
    first, second = [await requests.until(each, DatasetReady) for each in ids]
    assert first.dataset_version == second.dataset_version
    assert [requests.story(each) for each in ids] == [["DatasetAccepted", "DatasetReady"]] * 2


async def test_a_command_delivered_twice_is_answered_once(
    requests: Requests, base: BaseModelRegistered
) -> None:
    command = SubmitDataset(
        dataset_id=f"ds-{uuid4().hex[:12]}", tenant=TENANT, spec=await a_spec(requests, base, seed=4)
    )
    for _ in range(2):
        await requests.write("gateway", command, event_id=f"again-{command.dataset_id}")
    later = await requests.submit(await a_spec(requests, base, seed=5))
    await requests.until(command.dataset_id, DatasetReady)
    await requests.until(later, DatasetReady)
    assert requests.story(command.dataset_id) == ["DatasetAccepted", "DatasetReady"]


async def test_a_bad_file_is_rejected_with_rows_and_report_and_again_at_once(
    requests: Requests, base: BaseModelRegistered
) -> None:
    bad = await requests.file(chat_file(seed=6, count=3) + b'{"messages": []}\n{"oops"\n')
    spec = await a_spec(requests, base, seed=6, training_file=bad)
    rejected = await requests.until(await requests.submit(spec), DatasetRejected)
    assert rejected.code == "too_many_bad_rows"
    assert [(each.file, each.line, each.field, each.rule) for each in rejected.problems] == [
        ("training", 4, "messages", "chat.no_messages"),
        ("training", 5, "row", "json.invalid"),
    ]
    assert rejected.report_key is not None
    report = DatasetReport.model_validate_json(await requests.objects.get_bytes(rejected.report_key))
    assert (report.code, report.message) == (rejected.code, rejected.message)
    again = await requests.submit(spec)
    assert await requests.until(again, DatasetRejected) == rejected.model_copy(update={"dataset_id": again})
    assert not any(key.endswith(layout.MANIFEST) for key in await requests.keys(report.version))


async def test_parquet_of_a_producer_makes_the_parts_that_json_lines_make(
    requests: Requests, base: BaseModelRegistered
) -> None:
    lines = chat_file(seed=31)
    made = []
    for content in (lines, parquet_of(map(json.loads, lines.splitlines()))):
        training = await requests.file(content)
        dataset_id = await requests.submit(await a_spec(requests, base, seed=0, training_file=training))
        ready = await requests.until(dataset_id, DatasetReady)
        key = layout.dataset(ready.dataset_version)
        made.append(await get_manifest(requests.objects, key, DatasetManifest, sha256=ready.manifest_sha256))
    of_lines, of_parquet = made
    assert of_parquet.version != of_lines.version
    assert (of_parquet.training, of_parquet.counts) == (of_lines.training, of_lines.counts)


async def test_parquet_that_is_cut_off_is_refused_in_words_and_the_next_dataset_is_made(
    requests: Requests, base: BaseModelRegistered
) -> None:
    whole = parquet_of(map(json.loads, chat_file(seed=32).splitlines()))
    spec = await a_spec(requests, base, seed=0, training_file=await requests.file(whole[:-30]))
    rejected = await requests.until(await requests.submit(spec), DatasetRejected)
    assert rejected.code == "bad_parquet"
    assert rejected.message.startswith(
        f"the training file is Parquet that is cut off: its {len(whole) - 30} bytes end with "
    )
    assert rejected.report_key is not None
    await requests.until(await requests.submit(await a_spec(requests, base, seed=33)), DatasetReady)


async def test_a_file_that_is_not_in_the_store_is_rejected_and_may_be_submitted_again(
    requests: Requests, base: BaseModelRegistered
) -> None:
    content = chat_file(seed=7)
    missing = FileRef(
        file_id="file-gone", sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content)
    )
    spec = await a_spec(requests, base, seed=7, training_file=missing)
    rejected = await requests.until(await requests.submit(spec), DatasetRejected)
    assert rejected.code == "file_missing"
    assert "file-gone is not in the store" in rejected.message
    await requests.file(content)
    await requests.until(await requests.submit(spec), DatasetReady)


async def test_a_benchmark_registered_later_makes_another_version_and_finds_its_rows(
    requests: Requests, base: BaseModelRegistered
) -> None:
    text = " ".join(a_sha(str(number))[:6] for number in range(30))
    planted = [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}]
    training = await requests.file(chat_file(seed=8) + json.dumps({"messages": planted}).encode())
    spec = await a_spec(requests, base, seed=8, training_file=training)
    clean = await requests.until(await requests.submit(spec), DatasetReady)
    assert clean.counts.contaminated_rows == 0
    name = f"bench-{uuid4().hex[:6]}"
    file = await requests.file(json.dumps({"text": text}).encode())
    registered = BenchmarkRegistered(
        name=name, kind=BenchmarkKind.TEXT, digest=a_sha(name), file=file, num_fewshot=0, rows=1
    )
    await requests.write("evaluator", registered)
    await requests.until_row("SELECT true FROM source WHERE name = $1", name)
    checked = await requests.until(await requests.submit(spec), DatasetReady)
    assert checked.dataset_version != clean.dataset_version
    assert checked.benchmarks == clean.benchmarks | {name: a_sha(name)}
    assert (checked.counts.contaminated_rows, checked.counts.rows) == (1, 20)


def scheduled(job_id: str, ready: DatasetReady) -> JobScheduled:
    return JobScheduled(
        job_id=job_id,
        tenant=ready.tenant,
        attempt=1,
        spec=a_job_spec(),
        base_sha=ready.base_sha,
        dataset=DatasetRef(version=ready.dataset_version, manifest_sha256=ready.manifest_sha256),
        config_hash=a_sha("config"),
        resume=None,
        pool="cpu",
        capacity_type="spot",
        nodes=1,
        devices_per_node=1,
        grace_seconds=30,
        start_deadline=utc_now(),
    )


async def test_bytes_go_when_the_last_attempt_is_done_with_them(
    requests: Requests, base: BaseModelRegistered
) -> None:
    spec = await a_spec(requests, base, seed=9)
    dataset_id = await requests.submit(spec)
    ready = await requests.until(dataset_id, DatasetReady)
    version, job_id = ready.dataset_version, f"ftjob-{uuid4().hex[:8]}"
    await requests.write("scheduler", scheduled(job_id, ready))
    await requests.until_row("SELECT true FROM job_use WHERE job_id = $1", job_id)

    computed = layout.feature(version, "key")
    await requests.objects.put_bytes(computed, b"of this version")
    await requests.write("gateway", DeleteDataset(dataset_version=version, tenant=TENANT))
    await requests.until_row("SELECT state = 'deleting' FROM version WHERE id = $1", version)
    assert layout.dataset(version) in await requests.keys(version)
    refused = await requests.until(await requests.submit(spec), DatasetRejected)
    assert refused.code == "being_deleted"

    done = JobSucceeded(
        job_id=job_id,
        tenant=TENANT,
        fine_tuned_model="ft:x",
        model_id="mv-1",
        promoted=True,
        deployed=True,
        message="",
    )
    await requests.write("scheduler", done)
    deleted = await requests.until(version, DatasetDeleted)
    assert dataset_id in deleted.dataset_ids
    assert await requests.keys(version) == set()
    assert await requests.objects.head(computed) is None

    again = await requests.until(await requests.submit(spec), DatasetReady)
    assert (again.dataset_version, again.manifest_sha256) == (version, ready.manifest_sha256)
    assert layout.dataset(version) in await requests.keys(version)


async def test_another_tenant_cannot_delete_a_dataset_nor_learn_that_it_exists(
    requests: Requests, base: BaseModelRegistered
) -> None:
    ready = await requests.until(await requests.submit(await a_spec(requests, base, seed=10)), DatasetReady)
    version, unknown = ready.dataset_version, a_sha(uuid4().hex)
    for each in (version, unknown):
        await requests.write("gateway", DeleteDataset(dataset_version=each, tenant="other"))
    of_foreign = await requests.until(version, CommandRefused)
    of_unknown = await requests.until(unknown, CommandRefused)
    assert of_foreign.code == of_unknown.code == "unknown_dataset"
    assert of_foreign.message.replace(version, "") == of_unknown.message.replace(unknown, "")
    assert layout.dataset(version) in await requests.keys(version)


async def test_tenants_share_no_version(requests: Requests, base: BaseModelRegistered) -> None:
    spec = await a_spec(requests, base, seed=11)
    ids = [await requests.submit(spec, tenant=tenant) for tenant in (TENANT, "other")]
    mine, theirs = [await requests.until(each, DatasetReady) for each in ids]
    assert mine.dataset_version != theirs.dataset_version


async def test_a_request_that_cannot_work_is_refused_with_the_parameter(
    requests: Requests, base: BaseModelRegistered
) -> None:
    spec = await a_spec(requests, base, seed=12, policy={"max_seq_length": CONTEXT + 1})
    dataset_id = await requests.submit(spec)
    refused = await requests.until(dataset_id, CommandRefused)
    assert (refused.code, refused.param) == ("window_too_long", "policy.max_seq_length")
    assert requests.heard(dataset_id, DatasetAccepted) == []


@pytest.mark.parametrize(
    "failpoint",
    [
        pytest.param("outbox.inserted", marks=at_night("the relay has tests of its own")),
        pytest.param("s3.part.sent", marks=at_night("after the last part at each change")),
        "s3.parts.done",
        "s3.manifest.after",
    ],
)
async def test_a_kill_during_validation_loses_and_doubles_nothing(
    requests: Requests, base: BaseModelRegistered, failpoint: str
) -> None:
    stack = requests.stack
    spec = await a_spec(requests, base, seed=int(a_sha(failpoint)[:8], 16))
    await stack.stop("ingest")
    victim = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.ingest.app"),
        env=os.environ | stack.service_env("ingest") | {"FAILPOINTS": f"{failpoint}=kill"},
        stderr=asyncio.subprocess.DEVNULL,
    )
    dataset_id = await requests.submit(spec)
    assert await asyncio.wait_for(victim.wait(), PATIENCE_SECONDS) == -signal.SIGKILL
    await stack.up(("ingest",))
    ready = await requests.until(dataset_id, DatasetReady)
    assert requests.story(dataset_id) == ["DatasetAccepted", "DatasetReady"]
    key = layout.dataset(ready.dataset_version)
    await get_manifest(requests.objects, key, DatasetManifest, sha256=ready.manifest_sha256)
