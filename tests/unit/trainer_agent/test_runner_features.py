"""What was computed of a dataset version is stored once, verified whenever it is read, and never trusted."""

import hashlib
import json
from pathlib import Path

import pytest

from schemas import layout
from schemas.artifacts import DatasetCounts, DatasetManifest, FileEntry, ReferenceIdentity
from schemas.base import DeviceKind
from schemas.specification import DatasetFormat, DpoSpec, Method, Recipe
from services.trainer_agent.protocol import ReferenceComputed, TrainingOrder
from services.trainer_agent.runner.features import (
    MAX_NUMBER,
    ReferenceUploader,
    fetch_reference,
    needs_start,
    reference_key,
)
from shared.storage.testing import FakeObjectStore

SHA = "a" * 64
DPO = Recipe(method=Method.DPO)


@pytest.fixture
def objects() -> FakeObjectStore:
    return FakeObjectStore()


def an_order(folder: Path, recipe: Recipe = DPO, *, template: str = SHA, **changes) -> TrainingOrder:
    folder.mkdir(parents=True, exist_ok=True)
    manifest = DatasetManifest(
        version=SHA,
        tenant="acme",
        base_sha=SHA,
        template_sha256=template,
        format=DatasetFormat.PREFERENCE,
        method=Method.DPO,
        max_seq_length=8,
        counts=DatasetCounts(rows=1, windows=1, tokens=1, loss_tokens=1),
        training=(),
        report=FileEntry(path="report.json", size_bytes=2, sha256=SHA),
        rules_version=1,
    )
    (folder / layout.MANIFEST).write_text(manifest.model_dump_json())
    fields = {"job_id": "ftjob-1", "base_sha": SHA, "dataset_version": SHA, "config_hash": SHA} | changes
    return TrainingOrder(attempt=1, recipe=recipe, base_dir=folder, dataset_dir=folder, **fields)


def computed(folder: Path, content: bytes = b"numbers") -> ReferenceComputed:
    path = folder / "computed"
    path.write_bytes(content)
    identity = ReferenceIdentity(
        base_sha=SHA, dataset_version=SHA, template_sha256=SHA, weights="adapter", precision="float32"
    )
    return ReferenceComputed(
        path=path, identity=identity, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest()
    )


async def stored(objects: FakeObjectStore, order: TrainingOrder, report: ReferenceComputed) -> None:
    uploader = ReferenceUploader(objects, order)
    uploader.offer(report)
    await uploader.finish()


async def fetched(objects: FakeObjectStore, order: TrainingOrder, folder: Path) -> bytes | None:
    folder.mkdir(exist_ok=True)
    path = (await fetch_reference(objects, order, folder)).path
    return None if path is None else path.read_bytes()


async def next_order(objects: FakeObjectStore, order: TrainingOrder, folder: Path) -> TrainingOrder:
    """Return the order of who has tried to fetch it."""
    folder.mkdir(exist_ok=True)
    reference = await fetch_reference(objects, order, folder)
    return order.model_copy(update={"reference": reference.path, "reference_number": reference.next_number})


async def test_what_one_attempt_computed_the_next_reads(objects, tmp_path):
    order = an_order(tmp_path / "dataset")
    assert await fetched(objects, order, tmp_path / "before") is None
    await stored(objects, order, computed(tmp_path))
    assert await fetched(objects, order, tmp_path / "after") == b"numbers"
    assert all(key.startswith(layout.features(SHA)) for key in objects.objects)


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(method=Method.DPO, dpo=DpoSpec(loss="simpo"))])
async def test_what_compares_with_nothing_reads_none(objects, tmp_path, recipe):
    order = an_order(tmp_path / "dataset", recipe)
    await stored(objects, order, computed(tmp_path))
    assert await fetched(objects, order, tmp_path / "after") is None


@pytest.mark.parametrize(
    ("where", "content"),
    [("parts/", b"numberz"), ("parts/", None), ("manifest", b"{}"), ("manifest", b"nothing")],
    ids=["part", "part missing", "manifest of nothing", "no manifest"],
)
async def test_what_is_damaged_is_computed_again_and_stored_beside_it(objects, tmp_path, where, content):
    order = an_order(tmp_path / "dataset")
    await stored(objects, order, computed(tmp_path))
    [key] = [key for key in objects.objects if where in key]
    if content is None:
        del objects.objects[key]
    else:
        objects.objects[key] = content
    damaged = dict(objects.objects)
    again = await next_order(objects, order, tmp_path / "damaged")
    assert again.reference is None
    await stored(objects, again, computed(tmp_path, b"better"))
    assert objects.objects.items() > damaged.items(), "nothing is taken away"
    assert await fetched(objects, order, tmp_path / "after") == b"better"


async def test_what_the_child_found_not_to_fit_is_replaced(objects, tmp_path):
    order = an_order(tmp_path / "dataset")
    await stored(objects, order, computed(tmp_path))
    for number, content in enumerate((b"better", b"best"), start=1):
        rejecting = await next_order(objects, order, tmp_path / "rejected")
        assert rejecting.reference is not None
        assert rejecting.reference_number == number
        await stored(objects, rejecting, computed(tmp_path, content))
        assert await fetched(objects, order, tmp_path / "after") == content


async def test_it_is_not_replaced_without_end(objects, tmp_path):
    order = an_order(tmp_path / "dataset", reference_number=MAX_NUMBER + 1)
    await stored(objects, order, computed(tmp_path))
    assert not objects.objects


async def test_of_two_jobs_that_compute_at_once_the_first_counts(objects, tmp_path):
    order = an_order(tmp_path / "dataset")
    await stored(objects, order, computed(tmp_path, b"first"))
    await stored(objects, order, computed(tmp_path, b"second"))
    assert await fetched(objects, order, tmp_path / "after") == b"first"


async def test_a_manifest_cannot_lead_out_of_the_folder(objects, tmp_path):
    order = an_order(tmp_path / "dataset")
    await stored(objects, order, computed(tmp_path))
    key = layout.feature(SHA, reference_key(order))
    manifest = json.loads(objects.objects[key])
    manifest["file"]["path"] = "../../escaped"
    objects.objects[key] = json.dumps(manifest).encode()
    assert await fetched(objects, order, tmp_path / "folder") is None
    assert not (tmp_path.parent / "escaped").exists()


def test_each_thing_that_the_numbers_follow_from_has_its_own_key(tmp_path):
    other = "b" * 64
    orders = [
        an_order(tmp_path / "0"),
        an_order(tmp_path / "1", base_sha=other),
        an_order(tmp_path / "2", dataset_version=other),
        an_order(tmp_path / "3", template=other),
        an_order(tmp_path / "4", DPO.model_copy(update={"weights": "full"})),
        an_order(tmp_path / "5", DPO.model_copy(update={"precision": "bfloat16"})),
        an_order(tmp_path / "6", device=DeviceKind.CPU),
        an_order(tmp_path / "9", DPO.model_copy(update={"quantization": "nf4"})),
    ]
    assert len({reference_key(order) for order in orders}) == len(orders)
    same = [
        an_order(tmp_path / "7", DPO.model_copy(update={"dpo": DpoSpec(beta=0.3)}), job_id="ftjob-2"),
        an_order(tmp_path / "8", DPO.model_copy(update={"seed": 3, "num_epochs": 2}), nodes=2),
    ]
    assert {reference_key(order) for order in same} == {reference_key(orders[0])}


@pytest.mark.parametrize(
    ("recipe", "is_resumed", "has_reference", "expected"),
    [
        (DPO, False, True, True),
        (DPO, True, False, True),
        (DPO, True, True, False),
        (DPO.model_copy(update={"quantization": "nf4"}), True, True, True),
        (Recipe(method=Method.QLORA), True, False, False),
    ],
)
def test_the_weights_at_the_start_are_fetched_where_something_is_still_compared_with_them(
    recipe, is_resumed, has_reference, expected
):
    assert needs_start(recipe, is_resumed=is_resumed, has_reference=has_reference) is expected
