"""Base models with a template for training: compared with the model's own in the process that renders both."""

import hashlib
from datetime import timedelta
from pathlib import Path

import pytest

from schemas import layout
from schemas.model import DirectorySource
from services.registry.clients import BaseModelMirror
from services.registry.clients.child import NoVerdict
from services.registry.clients.sources import Hub
from services.registry.clients.templates import require_same_text
from services.registry.decide.base_models import BadBaseModel
from shared.storage.testing import FakeObjectStore
from tests.model_files import BASE_SHAPES, safetensors
from tests.tiny_model import CHAT_TEMPLATE, save_tokenizer
from tests.unit.registry.builders import LIMITS, inspect

RELEASED = CHAT_TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A model as its maker gives it, with a template that marks nothing."""
    directory = tmp_path / "released"
    save_tokenizer(directory, text="hello world\n", vocab_size=300, context_tokens=64)
    (directory / "chat_template.jinja").write_text(RELEASED)
    (directory / "config.json").write_text('{"max_position_embeddings": 64}')
    (directory / "model.safetensors").write_bytes(safetensors(BASE_SHAPES))
    return directory


async def test_a_marked_twin_becomes_one_of_the_models_files(
    released: Path, tmp_path: Path, hub: Hub
) -> None:
    objects = FakeObjectStore()
    mirror = BaseModelMirror(objects, hub, scratch=tmp_path / "scratch", limits=LIMITS, inspect=inspect)
    source = DirectorySource(path=str(released))
    plain, marked = [await mirror.mirror("tiny", source, text) for text in (None, CHAT_TEMPLATE)]
    assert plain.base_sha != marked.base_sha
    assert plain.manifest.template_sha256 == marked.manifest.template_sha256
    assert plain.manifest.training_template_sha256 is None
    digest = hashlib.sha256(CHAT_TEMPLATE.encode()).hexdigest()
    assert marked.manifest.training_template_sha256 == digest
    key = layout.base_model(marked.base_sha, layout.file(layout.TRAINING_TEMPLATE))
    assert objects.objects[key] == CHAT_TEMPLATE.encode()
    assert not (released / layout.TRAINING_TEMPLATE).exists()
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_another_text_is_refused_by_the_kind_of_row_and_the_place(
    released: Path, tmp_path: Path, hub: Hub
) -> None:
    objects = FakeObjectStore()
    mirror = BaseModelMirror(objects, hub, scratch=tmp_path / "scratch", limits=LIMITS, inspect=inspect)
    other = CHAT_TEMPLATE.replace("{{ message['content']", "{{ ' ' + message['content']")
    with pytest.raises(BadBaseModel) as refused:
        await mirror.mirror("tiny", DirectorySource(path=str(released)), other)
    assert str(refused.value).startswith(
        "training_template.jinja: one turn: the training template writes ' Name a colour."
    )
    assert objects.objects == {}


async def test_a_tokenizer_that_cannot_be_read_and_a_check_that_takes_too_long_are_named(
    released: Path,
) -> None:
    (released / layout.TRAINING_TEMPLATE).write_text(CHAT_TEMPLATE)
    with pytest.raises(BadBaseModel, match="took more than 0 s"):
        await require_same_text(released, limit=timedelta(milliseconds=10))
    (released / "tokenizer.json").write_text("{}")
    with pytest.raises(BadBaseModel, match="the base model's tokenizer cannot be read"):
        await require_same_text(released)


async def test_a_process_that_ends_without_a_verdict_is_tried_again(released: Path) -> None:
    with pytest.raises(NoVerdict, match=layout.TRAINING_TEMPLATE):
        await require_same_text(released)


@pytest.fixture
def hub() -> Hub:
    class NoHub:
        def sizes(self, repository: str, commit: str) -> dict[str, int]:
            raise AssertionError("nothing is fetched here")

        def download(self, repository: str, commit: str, into: Path) -> None:
            raise AssertionError(f"{repository}@{commit} was asked for {into}")

    return NoHub()
