"""A bundle is verified by reading all of it back: whatever is not as its manifest says, makes it corrupt."""

import hashlib

import pytest

from schemas import layout
from schemas.artifacts import BundleManifest, FileEntry
from schemas.base import BundleRef
from schemas.specification import Method
from services.checkpoint_watcher.clients import delete_bundle, delete_logs, verify_bundle
from shared.errors import StorageUnavailable
from shared.storage.objects import MAX_BYTES_IN_MEMORY, put_manifest
from shared.storage.testing import FakeObjectStore
from tests.builders import a_sha

JOB = "ftjob-1"
PARTS = {"model/adapter_model.safetensors": b"weights" * 100, "state.json": b"{}", "rng/rank-0": b"rng"}


def entry(path: str, data: bytes) -> FileEntry:
    return FileEntry(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def a_manifest(**changes: object) -> BundleManifest:
    fields = {
        "job_id": JOB,
        "attempt": 1,
        "step": 10,
        "world_size": 1,
        "method": Method.LORA,
        "base_sha": a_sha("tiny"),
        "dataset_version": a_sha("dataset"),
        "config_hash": a_sha("config"),
        "parts": tuple(entry(path, data) for path, data in PARTS.items()),
    }
    return BundleManifest(**fields | changes)


async def put_bundle(objects: FakeObjectStore, manifest: BundleManifest) -> BundleRef:
    for data in PARTS.values():
        key = layout.checkpoint(JOB, 1, 10, layout.part(hashlib.sha256(data).hexdigest()))
        await objects.put_bytes(key, data)
    digest = await put_manifest(objects, layout.checkpoint(JOB, 1, 10), manifest)
    return BundleRef(attempt=1, step=10, manifest_sha256=digest)


@pytest.fixture
def objects() -> FakeObjectStore:
    return FakeObjectStore()


@pytest.fixture
async def bundle(objects: FakeObjectStore) -> BundleRef:
    return await put_bundle(objects, a_manifest())


async def test_a_whole_bundle_has_no_problem_and_a_size(objects, bundle):
    verdict = await verify_bundle(objects, JOB, bundle)
    assert (verdict.problem, verdict.size_bytes) == ("", sum(map(len, PARTS.values())))


DAMAGES = {
    "one bit flipped": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "cut": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "empty": lambda data: b"",
    "other bytes of the same size": lambda data: b"x" * len(data),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_a_part_with_other_bytes_is_found_and_named(objects, bundle, part, damage):
    key = layout.checkpoint(JOB, 1, 10, layout.part(hashlib.sha256(PARTS[part]).hexdigest()))
    objects.objects[key] = damage(PARTS[part])
    verdict = await verify_bundle(objects, JOB, bundle)
    assert key in verdict.problem


@pytest.mark.parametrize("part", PARTS)
async def test_a_part_that_is_missing_is_found_and_named(objects, bundle, part):
    key = layout.checkpoint(JOB, 1, 10, layout.part(hashlib.sha256(PARTS[part]).hexdigest()))
    await objects.delete([key])
    assert (await verify_bundle(objects, JOB, bundle)).problem == f"{key} does not exist"


async def test_a_size_that_the_manifest_tells_wrong_is_found(objects):
    first, *rest = a_manifest().parts
    lying = first.model_copy(update={"size_bytes": first.size_bytes + 1})
    bundle = await put_bundle(objects, a_manifest(parts=(lying, *rest)))
    assert f"expected {lying.size_bytes}" in (await verify_bundle(objects, JOB, bundle)).problem


class TestManifest:
    KEY = layout.checkpoint(JOB, 1, 10)

    async def test_without_one_there_is_no_bundle(self, objects, bundle):
        await objects.delete([self.KEY])
        assert (await verify_bundle(objects, JOB, bundle)).problem == f"{self.KEY} does not exist"

    async def test_one_with_another_digest_than_was_claimed_is_refused(self, objects, bundle):
        claimed = bundle.model_copy(update={"manifest_sha256": a_sha("claimed")})
        assert self.KEY in (await verify_bundle(objects, JOB, claimed)).problem

    @pytest.mark.parametrize("foreign", [{"job_id": "ftjob-2"}, {"attempt": 2}, {"step": 11}])
    async def test_that_of_another_bundle_is_refused(self, objects, foreign):
        bundle = await put_bundle(objects, a_manifest(**foreign))
        assert "manifest is of" in (await verify_bundle(objects, JOB, bundle)).problem

    @pytest.mark.parametrize("data", [b"", b"{}", b"not JSON", b"[" * 5000, b"\xff\xfe"])
    async def test_what_is_none_is_refused(self, objects, data):
        digest = await objects.put_bytes(self.KEY, data)
        bundle = BundleRef(attempt=1, step=10, manifest_sha256=digest)
        assert (await verify_bundle(objects, JOB, bundle)).problem

    async def test_one_too_large_for_memory_is_refused_unread(self, objects):
        digest = await objects.put_bytes(self.KEY, b" " * (MAX_BYTES_IN_MEMORY + 1))
        bundle = BundleRef(attempt=1, step=10, manifest_sha256=digest)
        assert (
            f"expected at most {MAX_BYTES_IN_MEMORY}" in (await verify_bundle(objects, JOB, bundle)).problem
        )


async def test_a_store_that_is_away_says_nothing_about_the_bundle(objects, bundle, monkeypatch):
    async def away(key: str, **_: object) -> None:
        raise StorageUnavailable(f"{key}: no answer")

    monkeypatch.setattr(objects, "verify", away)
    with pytest.raises(StorageUnavailable):
        await verify_bundle(objects, JOB, bundle)


async def test_a_deletion_takes_the_manifest_first(objects, bundle, monkeypatch):
    deleted: list[str] = []
    delete = objects.delete

    async def noting(keys):
        deleted.extend(keys)
        await delete(keys)

    monkeypatch.setattr(objects, "delete", noting)
    await delete_bundle(objects, JOB, bundle)
    assert deleted[0] == layout.checkpoint(JOB, 1, 10)
    assert objects.objects == {}


async def test_logs_of_all_nodes_and_attempts_of_the_job_are_deleted_and_no_others():
    objects = FakeObjectStore()
    other = layout.log("ftjob-10", 1, 0, 0)
    for key in (layout.log(JOB, 1, 0, 0), layout.log(JOB, 1, 1, 3), layout.log(JOB, 2, 0, 0), other):
        await objects.put_bytes(key, b"text")
    await delete_logs(objects, JOB)
    assert [head.key for head in await objects.list_objects("logs/")] == [other]
