"""Which bundle is stored when; the bucket is a dictionary whose keys a test can hold back."""

import asyncio
import hashlib
import json
from pathlib import Path

import pytest

from schemas import layout
from schemas.artifacts import BundleManifest, FileEntry
from schemas.base import BundleRef
from schemas.specification import Recipe
from services.trainer_agent.protocol import Best, BundleKind, Saved, TrainingOrder
from services.trainer_agent.runner import bundles
from services.trainer_agent.runner.bundles import Identity, Uploader
from shared.storage.objects import ObjectHead
from shared.storage.testing import FakeObjectStore
from tests.waiting import until

SHA = "a" * 64
RESUME = BundleRef(attempt=1, step=4, manifest_sha256=SHA)


class HeldObjectStore(FakeObjectStore):
    """Puts of parts wait until the test lets them go; looks for keys are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.waiting = 0
        self.looks = 0

    async def head(self, key: str) -> ObjectHead | None:
        self.looks += 1
        return await super().head(key)

    async def put_file(self, key: str, path: Path, *, sha256: str) -> None:
        self.waiting += 1
        await self.open.wait()
        await super().put_file(key, path, sha256=sha256)


@pytest.fixture
def objects():
    store = HeldObjectStore()
    store.open.set()
    return store


@pytest.fixture
def reports():
    return []


@pytest.fixture
def uploader(objects, reports, tmp_path):
    return an_uploader(objects, reports, tmp_path)


def an_uploader(
    objects, reports, tmp_path, *, node_index: int = 0, best: BundleRef | None = None
) -> Uploader:
    order = TrainingOrder(
        job_id="ftjob-1",
        attempt=2,
        recipe=Recipe(),
        base_dir=tmp_path,
        dataset_dir=tmp_path,
        base_sha=SHA,
        dataset_version=SHA,
        config_hash=SHA,
        nodes=2,
    )
    runner_identity = Identity("ftjob-1", "acme", 2, node_index)
    return Uploader(objects, order, runner_identity, resume=RESUME, best=best, report=reports.append)


def saved(
    tmp_path: Path,
    step: int,
    kind: BundleKind = BundleKind.PERIODIC,
    *,
    others: int = 0,
    best: int | None = None,
) -> Saved:
    """A bundle of one part of this node, and of so many parts of another node. `best`: the step that it names."""
    directory = tmp_path / "bundles" / str(step)
    directory.mkdir(parents=True, exist_ok=True)
    mine = an_entry(f"rank-0-of-{step}")
    (directory / mine.path).write_bytes(content_of(mine.path))
    theirs = tuple(an_entry(f"other-{index}-of-{step}") for index in range(others))
    named = None if best is None else Best(step=best, valid_loss=best / 10)
    parts = {"parts": (mine,), "all_parts": (mine, *theirs)}
    return Saved(step=step, bundle=kind, directory=directory, best=named, **parts)


def content_of(path: str) -> bytes:
    return path.encode()


def an_entry(path: str) -> FileEntry:
    data = content_of(path)
    return FileEntry(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def part_key(entry: FileEntry, step: int) -> str:
    return layout.checkpoint("ftjob-1", 2, step, layout.part(entry.sha256))


def steps(reports) -> list[int]:
    return [report.bundle.step for report in reports]


async def test_a_bundle_exists_once_its_manifest_does(uploader, objects, reports, tmp_path):
    uploader.offer(saved(tmp_path, 5))
    await uploader.finish()
    key = layout.checkpoint("ftjob-1", 2, 5)
    manifest = json.loads(objects.objects[key])
    assert [part["path"] for part in manifest["parts"]] == ["rank-0-of-5"]
    assert list(objects.objects)[-1] == key
    assert reports[0].bundle == BundleRef(
        attempt=2, step=5, manifest_sha256=hashlib.sha256(objects.objects[key]).hexdigest()
    )


async def test_a_newer_periodic_bundle_supersedes_a_queued_one(uploader, objects, reports, tmp_path):
    objects.open.clear()
    for step in (5, 6, 7):
        uploader.offer(saved(tmp_path, step))
    objects.open.set()
    await uploader.finish()
    assert steps(reports) == [5, 7]


@pytest.mark.parametrize("kind", [BundleKind.EMERGENCY, BundleKind.FINAL])
async def test_a_last_bundle_waits_for_nobody(uploader, objects, reports, tmp_path, kind):
    objects.open.clear()
    uploader.offer(saved(tmp_path, 5))
    uploader.offer(saved(tmp_path, 6))
    await until(lambda: objects.waiting == 1, every=0)
    uploader.offer(saved(tmp_path, 7, kind))
    await until(lambda: objects.waiting == 2, every=0)
    objects.open.set()
    await uploader.finish()
    assert steps(reports) == [7]
    assert uploader.last == reports[0].bundle


async def test_a_last_bundle_of_a_stored_step_is_that_bundle(uploader, reports, tmp_path):
    uploader.offer(saved(tmp_path, 5))
    await uploader.finish()
    uploader.offer(saved(tmp_path, 5, BundleKind.FINAL))
    await uploader.finish()
    assert steps(reports) == [5]
    assert uploader.last == reports[0].bundle


async def test_a_reused_bundle_is_the_one_that_was_resumed_from(uploader, reports):
    reused = Saved(step=4, bundle=BundleKind.EMERGENCY, directory=Path(), parts=(), reused=True)
    uploader.offer(reused)
    await uploader.finish()
    assert (uploader.last, reports) == (RESUME, [])


async def test_the_manifest_waits_for_the_parts_of_all_nodes(uploader, objects, reports, tmp_path):
    bundle = saved(tmp_path, 5, BundleKind.FINAL, others=1)
    uploader.offer(bundle)
    mine, theirs = bundle.all_parts
    await until(lambda: objects.looks == 1, every=0)
    assert part_key(mine, 5) in objects.objects
    assert layout.checkpoint("ftjob-1", 2, 5) not in objects.objects
    await objects.put_bytes(part_key(theirs, 5), content_of(theirs.path))
    await uploader.finish()
    assert steps(reports) == [5]


async def test_a_last_bundle_does_not_wait_for_ever_for_a_node_that_ended(
    uploader, objects, reports, tmp_path, monkeypatch
):
    """It had its own notice, and no time to store its part; nobody asks this one to stop."""
    monkeypatch.setattr(bundles, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(bundles, "LAST_PATIENCE_SECONDS", 0.0)
    uploader.offer(saved(tmp_path, 10, BundleKind.FINAL, others=1))
    await asyncio.wait_for(uploader.finish(), 5.0)
    assert (uploader.last, reports) == (None, [])
    assert await objects.head(layout.checkpoint("ftjob-1", 2, 10)) is None


async def test_another_node_stores_its_parts_and_no_manifest(objects, reports, tmp_path):
    bundle = saved(tmp_path, 5, BundleKind.FINAL)
    uploader = an_uploader(objects, reports, tmp_path, node_index=1)
    uploader.offer(bundle)
    await uploader.finish()
    assert list(objects.objects) == [part_key(bundle.parts[0], 5)]
    assert reports == []


async def test_an_aborted_upload_leaves_no_manifest(uploader, objects, reports, tmp_path):
    objects.open.clear()
    uploader.offer(saved(tmp_path, 5, BundleKind.FINAL))
    await until(lambda: objects.waiting == 1, every=0)
    await uploader.abort()
    await uploader.finish()
    assert (objects.objects, reports, uploader.last) == ({}, [], None)


async def test_a_part_that_is_not_what_was_reported_is_not_stored(uploader, objects, reports, tmp_path):
    bundle = saved(tmp_path, 5, BundleKind.FINAL)
    (bundle.directory / bundle.parts[0].path).write_bytes(b"other")
    uploader.offer(bundle)
    await uploader.finish()
    assert (objects.objects, reports, uploader.last) == ({}, [], None)


async def test_stored_bundles_free_the_disk_but_for_the_newest(uploader, tmp_path):
    for step in (5, 6):
        uploader.offer(saved(tmp_path, step))
        await uploader.finish()
    assert [folder.name for folder in (tmp_path / "bundles").iterdir()] == ["6"]


def manifest_of(objects, step: int) -> BundleManifest:
    return BundleManifest.model_validate_json(objects.objects[layout.checkpoint("ftjob-1", 2, step)])


class TestBest:
    async def test_is_named_by_its_own_bundle_and_by_later_ones(self, uploader, objects, reports, tmp_path):
        for step in (5, 6):
            uploader.offer(saved(tmp_path, step, best=5))
            await uploader.finish()
        assert [report.best.bundle for report in reports] == [reports[0].bundle] * 2
        assert [report.best.valid_loss for report in reports] == [0.5, 0.5]
        assert [manifest_of(objects, step).best for step in (5, 6)] == [None, reports[0].bundle]

    @pytest.mark.parametrize("kind", list(BundleKind))
    async def test_superseded_in_the_queue_it_is_stored_before_what_names_it(
        self, uploader, objects, reports, tmp_path, kind
    ):
        """Whoever resumes from the later one has the best one too, whatever is killed when."""
        objects.open.clear()
        uploader.offer(saved(tmp_path, 5))
        uploader.offer(saved(tmp_path, 6, best=6))
        uploader.offer(saved(tmp_path, 7, kind, best=6))
        objects.open.set()
        await uploader.finish()
        assert steps(reports)[-2:] == [6, 7]
        assert reports[-1].best.bundle == reports[-2].bundle
        assert uploader.last == (None if kind is BundleKind.PERIODIC else reports[-1].bundle)

    async def test_one_that_a_better_one_superseded_is_not_stored(self, uploader, objects, reports, tmp_path):
        objects.open.clear()
        for step, best in ((5, 5), (6, 6), (7, 6), (8, 8), (9, 8)):
            uploader.offer(saved(tmp_path, step, best=best))
        objects.open.set()
        await uploader.finish()
        assert steps(reports) == [5, 8, 9]

    async def test_where_it_cannot_be_stored_nothing_that_names_it_is(
        self, uploader, objects, reports, tmp_path
    ):
        best = saved(tmp_path, 5, best=5)
        part = best.directory / best.parts[0].path
        part.write_bytes(b"other")
        uploader.offer(best)
        uploader.offer(saved(tmp_path, 6, best=5))
        await uploader.finish()
        assert reports == []
        part.write_bytes(content_of(best.parts[0].path))
        uploader.offer(saved(tmp_path, 7, BundleKind.FINAL, best=5))
        await uploader.finish()
        assert steps(reports) == [5, 7]
        assert uploader.last == reports[-1].bundle

    async def test_of_an_earlier_attempt_is_named_as_the_bundle_that_was_resumed_from_does(
        self, objects, reports, tmp_path
    ):
        earlier = BundleRef(attempt=1, step=2, manifest_sha256=SHA, job_id="ftjob-0")
        uploader = an_uploader(objects, reports, tmp_path, best=earlier)
        for step, best in ((5, 2), (6, 4), (7, 7)):
            uploader.offer(saved(tmp_path, step, best=best))
            await uploader.finish()
        assert [report.best.bundle for report in reports] == [earlier, RESUME, reports[2].bundle]

    async def test_another_node_stores_its_parts_of_it_once(self, objects, reports, tmp_path):
        uploader = an_uploader(objects, reports, tmp_path, node_index=1)
        objects.open.clear()
        for step in (5, 6, 7):
            uploader.offer(saved(tmp_path, step, best=6 if step > 5 else None))
        objects.open.set()
        await uploader.finish()
        uploader.offer(saved(tmp_path, 8, best=6))
        await uploader.finish()
        assert objects.waiting == 4
        assert reports == []

    async def test_a_last_bundle_of_the_step_that_was_resumed_from_is_stored_again(
        self, uploader, reports, tmp_path
    ):
        """It was written before that step was validated."""
        uploader.offer(saved(tmp_path, RESUME.step, BundleKind.FINAL, best=RESUME.step))
        await uploader.finish()
        assert steps(reports) == [RESUME.step]
        assert uploader.last == reports[0].bundle == reports[0].best.bundle != RESUME
