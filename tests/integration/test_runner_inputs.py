"""What a runner fetches for its training: weights that an earlier job trained, and what was computed of a dataset."""

import asyncio
import os
import signal
from hashlib import sha256

import pytest

from schemas import layout
from schemas.artifacts import BundleManifest, FileEntry, ModelManifest, files_digest
from schemas.base import BundleRef, StartFrom
from schemas.specification import Method, Recipe
from schemas.training import (
    StepReached,
    TrainingCompleted,
    TrainingFailed,
)
from services.trainer_agent.protocol import TrainingOrder
from shared.processes.orders import ORDER, read_order
from tests.builders import a_bundle, a_sha
from tests.integration.nodes import attempts, nodes
from tests.waiting import PATIENCE_SECONDS

__all__ = ["attempts", "nodes"]

pytestmark = pytest.mark.stack

SLOW = {"steps": 10_000, "seconds": 0.05}


class TestStart:
    """From weights that an earlier job trained."""

    WEIGHTS = b"weights of an adapter"
    FILE = FileEntry(
        path="adapter_model.safetensors", size_bytes=len(WEIGHTS), sha256=sha256(WEIGHTS).hexdigest()
    )

    async def of_version(self, attempts, base_sha):
        digest = files_digest((self.FILE,))
        start = StartFrom(name="ft:x", job_id="ftjob-0", bundle=a_bundle(), digest=digest)
        manifest = ModelManifest(
            kind="adapter", files=(self.FILE,), base_sha=base_sha, source=start.bundle, job_id="ftjob-0"
        )
        await attempts.objects.put_bytes(layout.model(digest, layout.file(self.FILE.path)), self.WEIGHTS)
        await attempts.objects.put_bytes(layout.model(digest), manifest.model_dump_json().encode())
        return start

    async def of_checkpoint(self, attempts, base_sha):
        moments = self.FILE.model_copy(
            update={"path": "optimizer/rank-0.safetensors", "sha256": a_sha("moments")}
        )
        manifest = BundleManifest(
            job_id="ftjob-0",
            attempt=1,
            step=10,
            world_size=1,
            method="lora",
            base_sha=base_sha,
            dataset_version=a_sha(),
            config_hash=a_sha(),
            parts=(self.FILE.model_copy(update={"path": f"model/{self.FILE.path}"}), moments),
        )
        part = layout.checkpoint("ftjob-0", 1, 10, layout.part(self.FILE.sha256))
        await attempts.objects.put_bytes(part, self.WEIGHTS)
        content = manifest.model_dump_json().encode()
        digest = await attempts.objects.put_bytes(layout.checkpoint("ftjob-0", 1, 10), content)
        bundle = BundleRef(attempt=1, step=10, manifest_sha256=digest)
        return StartFrom(name="ftckpt-ftjob-0-1-10", job_id="ftjob-0", bundle=bundle)

    async def started(self, attempts, nodes, start_from):
        spec = attempts.a_schedule().spec.model_copy(update={"start_from": start_from})
        scheduled = await attempts.schedule(spec=spec)
        await nodes.start(scheduled, script={"steps": 2})
        return scheduled

    @pytest.mark.parametrize("put", [of_version, of_checkpoint])
    async def test_its_child_has_the_verified_files_and_no_other(self, attempts, nodes, put):
        start_from = await put(self, attempts, attempts.a_schedule().base_sha)
        scheduled = await self.started(attempts, nodes, start_from)
        await attempts.until(scheduled.job_id, TrainingCompleted)
        name = layout.attempt_name(scheduled.job_id, scheduled.attempt)
        order = read_order(nodes.folder / name / "0" / "work" / ORDER, TrainingOrder)
        files = {path.name: path.read_bytes() for path in order.start_dir.iterdir()}
        assert files == {self.FILE.path: self.WEIGHTS}

    async def test_a_checkpoint_that_is_gone_is_named(self, attempts, nodes):
        start_from = StartFrom(name="ftckpt-ftjob-9-1-10", job_id="ftjob-9", bundle=a_bundle())
        scheduled = await self.started(attempts, nodes, start_from)
        failed = await attempts.until(scheduled.job_id, TrainingFailed)
        assert "ftckpt-ftjob-9-1-10, which the job starts from, was deleted" in failed.message


async def test_what_the_base_model_says_is_computed_once_for_a_killed_attempt_and_the_next_job(
    attempts, nodes
):
    spec = attempts.a_schedule().spec
    spec = spec.model_copy(update={"recipe": Recipe(method=Method.DPO)})
    first = await attempts.schedule(spec=spec)
    await nodes.start(first, script=SLOW)
    await attempts.until(first.job_id, StepReached)
    prefix = layout.features(first.dataset.version)

    async def is_stored() -> bool:
        heads = await attempts.objects.list_objects(prefix)
        return any(head.key.endswith(layout.MANIFEST) for head in heads)

    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await is_stored():  # noqa: ASYNC110 - an object has no event
            await asyncio.sleep(0.05)
    os.kill(nodes.child_pids(first)[0], signal.SIGKILL)
    await attempts.until(first.job_id, TrainingFailed)
    second = await attempts.schedule(first.job_id, attempt=2, spec=spec)
    other = await attempts.schedule(spec=spec)
    for scheduled in (second, other):
        await nodes.start(scheduled, script={"steps": 3})
        await attempts.until(scheduled.job_id, TrainingCompleted)
        await nodes.until_ended(scheduled)
        log = await attempts.log(scheduled)
        assert "reference read: computed by attempt 1" in log
