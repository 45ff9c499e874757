import hashlib
import json

import pytest

from schemas import layout
from schemas.artifacts import BaseModelManifest, FileEntry, ModelManifest, files_digest
from schemas.model import NO_TEMPLATE_SHA256, DirectorySource, HubSource
from services.registry.clients import ArtifactCopies, BaseModelMirror
from services.registry.decide.base_models import BadBaseModel
from shared.errors import CorruptObject
from shared.model_files.tensors import BadModel, NotFinite
from shared.storage.testing import FakeObjectStore
from tests.model_files import ADAPTER_SHAPES, BASE_SHAPES, adapter_config, safetensors
from tests.unit.registry.builders import LIMITS, an_inspection, inspect
from tests.unit.registry.bundles import a_bundle, entry, part_key

COMMIT = "0" * 40
MODEL = {
    "config.json": json.dumps({"max_position_embeddings": 512}).encode(),
    "model.safetensors": safetensors(BASE_SHAPES),
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"# Tiny",
}
ADAPTER = {"adapter_config.json": adapter_config(), "adapter_model.safetensors": safetensors(ADAPTER_SHAPES)}


class LocalHub:
    """A hub whose only repository is a dictionary."""

    def __init__(self):
        self.asked = []

    def sizes(self, repository, commit):
        return {name: len(content) for name, content in MODEL.items()}

    def download(self, repository, commit, into):
        self.asked.append((repository, commit))
        write(into, MODEL)


def write(directory, files):
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def entries(files):
    return tuple(entry(path, content) for path, content in sorted(files.items()))


@pytest.fixture
def objects():
    return FakeObjectStore()


@pytest.fixture
def mirror(objects, tmp_path):
    return BaseModelMirror(objects, LocalHub(), scratch=tmp_path / "scratch", limits=LIMITS, inspect=inspect)


@pytest.fixture
def copies(objects, tmp_path):
    return ArtifactCopies(objects, scratch=tmp_path / "scratch")


class TestMirror:
    async def test_names_a_model_by_the_digest_of_its_files(self, mirror, objects, tmp_path):
        mirrored = await mirror.mirror("tiny", DirectorySource(path=str(write(tmp_path / "m", MODEL))))
        kept = {name: content for name, content in MODEL.items() if name != "README.md"}
        assert mirrored.base_sha == files_digest(entries(kept))
        manifest = BaseModelManifest.model_validate_json(
            objects.objects[layout.base_model(mirrored.base_sha)]
        )
        assert (manifest.context_tokens, manifest.num_parameters) == (512, 32 * 64 + 64)
        assert manifest.template_sha256 == hashlib.sha256(b"{{ messages }}").hexdigest()
        for file in manifest.files:
            stored = objects.objects[layout.base_model(mirrored.base_sha, layout.file(file.path))]
            assert stored == MODEL[file.path]
        assert mirrored.shapes == BASE_SHAPES

    async def test_takes_a_hub_model_by_its_commit_and_leaves_no_scratch(self, objects, tmp_path):
        hub = LocalHub()
        mirror = BaseModelMirror(objects, hub, scratch=tmp_path / "scratch", limits=LIMITS, inspect=inspect)
        mirrored = await mirror.mirror("tiny", HubSource(repository="org/tiny", commit=COMMIT))
        assert hub.asked == [("org/tiny", COMMIT)]
        assert mirrored.source == f"hub:org/tiny@{COMMIT}"
        assert list((tmp_path / "scratch").iterdir()) == []

    async def test_keeps_what_the_model_can_do_in_its_manifest(self, mirror, objects, tmp_path):
        mirrored = await mirror.mirror("tiny", DirectorySource(path=str(write(tmp_path / "m", MODEL))))
        assert mirrored.manifest.capabilities == mirrored.capabilities
        assert mirrored.capabilities.family == "llama"

    async def test_stores_nothing_of_a_model_that_cannot_be_built(self, objects, tmp_path):
        async def inspect(directory):
            return an_inspection(problem="transformers has no causal language model of this family")

        mirror = BaseModelMirror(
            objects, LocalHub(), scratch=tmp_path / "scratch", limits=LIMITS, inspect=inspect
        )
        with pytest.raises(BadBaseModel, match="llama: transformers has no causal language model"):
            await mirror.mirror("tiny", DirectorySource(path=str(write(tmp_path / "m", MODEL))))
        assert objects.objects == {}

    async def test_gives_the_same_files_under_another_name_one_manifest(self, mirror, tmp_path):
        source = DirectorySource(path=str(write(tmp_path / "m", MODEL)))
        first = await mirror.mirror("tiny", source)
        second = await mirror.mirror("also-tiny", source)
        assert (first.base_sha, first.manifest_sha256) == (second.base_sha, second.manifest_sha256)

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"modeling.py": b"import os"}, BadBaseModel),
            ({"config.json": b'{"auto_map": {}, "max_position_embeddings": 1}'}, BadModel),
            ({"tokenizer_config.json": b'{"auto_map": {}}'}, BadModel),
            ({"model.safetensors": b"\x80\x02}q\x00."}, BadModel),
            ({"chat_template.jinja": b""}, BadBaseModel),
        ],
    )
    async def test_stores_nothing_of_a_model_that_it_refuses(self, mirror, objects, tmp_path, changes, error):
        directory = write(tmp_path / "m", {**MODEL, **changes})
        with pytest.raises(error):
            await mirror.mirror("tiny", DirectorySource(path=str(directory)))
        assert objects.objects == {}

    @pytest.mark.parametrize("training_template", [None, "{% generation %}x{% endgeneration %}"])
    async def test_names_a_directory_that_is_not_there(self, mirror, tmp_path, training_template):
        with pytest.raises(
            BadBaseModel, match="found nothing on the registry's machine, expected a directory"
        ):
            await mirror.mirror("tiny", DirectorySource(path=str(tmp_path / "none")), training_template)

    async def test_takes_a_model_without_a_template(self, mirror, tmp_path):
        files = {name: content for name, content in MODEL.items() if name != "chat_template.jinja"}
        mirrored = await mirror.mirror("tiny", DirectorySource(path=str(write(tmp_path / "m", files))))
        assert mirrored.manifest.template_sha256 == NO_TEMPLATE_SHA256

    async def test_refuses_a_training_template_that_marks_nothing(self, mirror, objects, tmp_path):
        source = DirectorySource(path=str(write(tmp_path / "m", MODEL)))
        with pytest.raises(BadBaseModel, match=r"no \{% generation %\} block"):
            await mirror.mirror("tiny", source, "{{ messages }}")
        assert objects.objects == {}
        assert list((tmp_path / "scratch").iterdir()) == []

    async def test_writes_over_no_training_template_of_the_model(self, mirror, tmp_path):
        own = {"training_template.jinja": b"its own"}
        directory = write(tmp_path / "m", MODEL | own)
        with pytest.raises(BadBaseModel, match="the model has one of its own"):
            await mirror.mirror("tiny", DirectorySource(path=str(directory)), "another")
        assert (directory / "training_template.jinja").read_bytes() == b"its own"


class TestCopy:
    async def test_puts_the_models_files_alone_under_their_digest(self, copies, objects):
        digest = await copies.copy(await a_bundle(objects, ADAPTER), BASE_SHAPES)
        assert digest == files_digest(entries(ADAPTER))
        manifest = ModelManifest.model_validate_json(objects.objects[layout.model(digest)])
        assert (manifest.kind, manifest.job_id, manifest.source.step) == ("adapter", "ftjob-1", 40)
        assert [file.path for file in manifest.files] == sorted(ADAPTER)
        for path, content in ADAPTER.items():
            assert objects.objects[layout.model(digest, layout.file(path))] == content

    async def test_takes_the_bundle_of_the_job_that_this_one_continued(self, copies, objects):
        artifact = await a_bundle(objects, ADAPTER)
        bundle = artifact.bundle.model_copy(update={"job_id": "ftjob-1"})
        continuing = artifact.model_copy(update={"job_id": "ftjob-2", "bundle": bundle})
        digest = await copies.copy(continuing, BASE_SHAPES)
        manifest = ModelManifest.model_validate_json(objects.objects[layout.model(digest)])
        assert (manifest.job_id, manifest.source.job_id) == ("ftjob-2", "ftjob-1")
        other = artifact.bundle.model_copy(update={"job_id": "ftjob-3"})
        with pytest.raises(KeyError):
            await copies.copy(continuing.model_copy(update={"bundle": other}), BASE_SHAPES)

    async def test_may_be_done_twice(self, copies, objects):
        artifact = await a_bundle(objects, ADAPTER)
        assert await copies.copy(artifact, BASE_SHAPES) == await copies.copy(artifact, BASE_SHAPES)

    async def test_leaves_no_scratch_whatever_happens(self, copies, objects, tmp_path):
        with pytest.raises(BadModel):
            await copies.copy(await a_bundle(objects, {**ADAPTER, "more.bin": b"x"}), BASE_SHAPES)
        assert list((tmp_path / "scratch").iterdir()) == []

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"adapter_config.json": adapter_config(rank=16)}, BadModel),
            ({"adapter_model.safetensors": safetensors(ADAPTER_SHAPES, fill=b"\xff")}, NotFinite),
            ({"adapter_model.safetensors": b"\x80\x02"}, BadModel),
        ],
    )
    async def test_stores_nothing_of_an_adapter_that_it_refuses(self, copies, objects, changes, error):
        artifact = await a_bundle(objects, {**ADAPTER, **changes})
        with pytest.raises(error):
            await copies.copy(artifact, BASE_SHAPES)
        assert not any(key.startswith("models/") for key in objects.objects)

    async def test_refuses_a_bundle_of_another_job_or_configuration(self, copies, objects):
        with pytest.raises(BadModel, match="expected"):
            await copies.copy(await a_bundle(objects, ADAPTER, config_hash="0" * 64), BASE_SHAPES)

    async def test_refuses_a_base_model_that_was_never_registered(self, copies, objects):
        with pytest.raises(BadModel, match="never registered"):
            await copies.copy(await a_bundle(objects, ADAPTER), None)

    async def test_refuses_a_part_whose_bytes_changed(self, copies, objects):
        artifact = await a_bundle(objects, ADAPTER)
        objects.objects[part_key(ADAPTER["adapter_config.json"])] = b"{}"
        with pytest.raises(CorruptObject):
            await copies.copy(artifact, BASE_SHAPES)

    async def test_refuses_a_path_that_leaves_its_folder(self, copies, objects, tmp_path):
        away = FileEntry.model_construct(path="../../escaped", size_bytes=1, sha256=entry("x", b"x").sha256)
        artifact = await a_bundle(objects, ADAPTER, parts=(away,))
        with pytest.raises(CorruptObject, match=r"is no BundleManifest: .* no relative path"):
            await copies.copy(artifact, BASE_SHAPES)
        assert not (tmp_path.parent / "escaped").exists()

    async def test_takes_a_full_model_with_the_base_models_configuration(
        self, copies, mirror, objects, tmp_path
    ):
        source = DirectorySource(path=str(write(tmp_path / "m", MODEL)))
        base_sha = (await mirror.mirror("tiny", source)).base_sha
        files = {"model.safetensors": safetensors(BASE_SHAPES), "config.json": MODEL["config.json"]}
        artifact = await a_bundle(objects, files, kind="full", base_sha=base_sha)
        digest = await copies.copy(artifact, BASE_SHAPES)
        assert layout.model(digest) in objects.objects

    async def test_refuses_a_full_model_with_a_configuration_of_its_own(
        self, copies, mirror, objects, tmp_path
    ):
        source = DirectorySource(path=str(write(tmp_path / "m", MODEL)))
        base_sha = (await mirror.mirror("tiny", source)).base_sha
        files = {"model.safetensors": safetensors(BASE_SHAPES), "config.json": b'{"auto_map": {}}'}
        with pytest.raises(BadModel, match=r"config\.json"):
            await copies.copy(await a_bundle(objects, files, kind="full", base_sha=base_sha), BASE_SHAPES)
