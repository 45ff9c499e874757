"""A watcher that dies while it deletes a bundle: all of it goes, nothing else does, and it is told once."""

import hashlib
from collections.abc import AsyncIterator

import pytest

from deploy.local.stack import Stack
from schemas import layout
from schemas.artifacts import BundleManifest, FileEntry
from schemas.base import BundleRef
from schemas.job import JobScheduled
from schemas.specification import Method
from schemas.training import BundleKind, CheckpointWritten
from shared.storage.objects import put_manifest
from tests.integration.attempts import Attempts
from tests.integration.kills import alive, killed_at
from tests.integration.voices import ear
from tests.waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.crash_matrix]

WATCHER = "checkpoint_watcher"


@pytest.fixture(scope="module")
async def attempts(stack: Stack) -> AsyncIterator[Attempts]:
    async with Attempts.on(stack) as attempts:
        yield attempts
    await stack.stop(WATCHER)


async def write_bundle(attempts: Attempts, scheduled: JobScheduled, step: int) -> None:
    """As a runner does: parts, manifest, and the word that it is there."""
    parts = []
    for number in range(3):
        content = f"{scheduled.job_id} {step} {number}".encode()
        digest = hashlib.sha256(content).hexdigest()
        await attempts.objects.put_bytes(
            layout.checkpoint(scheduled.job_id, 1, step, layout.part(digest)), content
        )
        parts.append(FileEntry(path=f"model/{number}", size_bytes=len(content), sha256=digest))
    manifest = BundleManifest(
        job_id=scheduled.job_id,
        attempt=1,
        step=step,
        world_size=1,
        method=Method.LORA,
        base_sha=scheduled.base_sha,
        dataset_version=scheduled.dataset.version,
        config_hash=scheduled.config_hash,
        parts=tuple(parts),
    )
    key = layout.checkpoint(scheduled.job_id, 1, step, layout.MANIFEST)
    bundle = BundleRef(
        attempt=1, step=step, manifest_sha256=await put_manifest(attempts.objects, key, manifest)
    )
    fact = CheckpointWritten(
        job_id=scheduled.job_id,
        tenant=scheduled.tenant,
        attempt=1,
        bundle=bundle,
        kind=BundleKind.PERIODIC,
        metrics={},
    )
    await attempts.write("trainer_agent", fact)


async def test_a_bundle_that_is_being_deleted_goes_whole_and_alone(stack, attempts):
    scheduled = await attempts.schedule()

    async def steps_left() -> list[int]:
        heads = await attempts.objects.list_objects(layout.checkpoints(scheduled.job_id, 1))
        return [int(head.key.split("/")[3]) for head in heads]

    async with ear(stack, "checkpoint.events") as heard:
        async with killed_at(stack, WATCHER, "gc.marked", env={}):
            for step in (10, 20, 30):
                await write_bundle(attempts, scheduled, step)
        assert (await steps_left()).count(10) == 3
        # The first pass is the kernel's own pruning, when the service starts; the next a manifest.
        async with killed_at(stack, WATCHER, "gc.deleted", at_pass=2, env={}):
            await write_bundle(attempts, scheduled, 40)
        await alive(stack, WATCHER, env={})

        def is_told() -> bool:
            return heard.types(scheduled.job_id).count("CheckpointExpired") == 2

        await until(is_told)
        expired = [
            each.message.bundle.step
            for each in heard.heard[scheduled.job_id]
            if each.message.type == "CheckpointExpired"
        ]
        assert sorted(expired) == [10, 20]
        assert heard.types(scheduled.job_id).count("CheckpointVerified") == 4
    assert sorted(await steps_left()) == [30] * 4 + [40] * 4
