"""Directories of models from the object store: whole, verified, or not there."""

import pytest

from schemas import layout
from shared.errors import CorruptObject
from shared.storage.models import fetch_base_model, fetch_model
from shared.storage.testing import FakeObjectStore
from tests.stored import put_base, put_model


@pytest.fixture
def objects():
    return FakeObjectStore()


@pytest.fixture
def source(tmp_path):
    directory = tmp_path / "source"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_text("weights")
    return directory


@pytest.fixture
def fetch_base(objects, tmp_path):
    async def fetch(base_sha):
        await fetch_base_model(objects, base_sha, tmp_path / "bases" / "b", draft=tmp_path / "draft")

    return fetch


async def test_a_base_model_comes_with_all_its_files(objects, source, fetch_base, tmp_path):
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "of a process that was killed").touch()
    await fetch_base(await put_base(objects, source))
    files = {path.name: path.read_text() for path in (tmp_path / "bases" / "b").iterdir()}
    assert files == {"config.json": "{}", "model.safetensors": "weights"}
    assert not (tmp_path / "draft").exists()


async def test_nothing_is_there_after_a_file_that_is_not_what_its_manifest_says(
    objects, source, fetch_base, tmp_path
):
    sha = await put_base(objects, source)
    objects.objects[layout.base_model(sha, layout.file("config.json"))] = b"[]"
    with pytest.raises(CorruptObject, match="expected sha256"):
        await fetch_base(sha)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


async def test_a_manifest_of_other_files_is_refused(objects, source, fetch_base):
    sha = await put_base(objects, source)
    objects.objects[layout.base_model("0" * 64)] = objects.objects[layout.base_model(sha)]
    with pytest.raises(CorruptObject, match=f"names files of digest {sha}, expected {'0' * 64}"):
        await fetch_base("0" * 64)


@pytest.mark.parametrize(("kind", "is_fetched"), [("adapter", True), (None, True), ("full", False)])
async def test_a_model_is_of_the_kind_that_was_asked_for(objects, source, tmp_path, kind, is_fetched):
    digest = await put_model(objects, source, base_sha="b" * 64, kind="adapter")
    into = tmp_path / "model"
    if is_fetched:
        await fetch_model(objects, digest, into, draft=tmp_path / "draft", kind=kind)
    else:
        with pytest.raises(CorruptObject, match="found kind adapter, expected full"):
            await fetch_model(objects, digest, into, draft=tmp_path / "draft", kind=kind)
    assert into.exists() is is_fetched
