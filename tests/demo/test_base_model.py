"""A base model of a few thousand parameters, made for real: its files are what serving and training load."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.demo.base_model import SHIPPED, BaseModel, ModelSettings, WrongDigest, load, make
from deploy.demo.library import Source
from deploy.demo.pretraining import PretrainingSettings
from deploy.demo.tokenizer import CHAT_TEMPLATE, END, ROLES
from tests.unit.demo.builders import code, held_out_path, seen_path

pytestmark = pytest.mark.torch

TINY = ModelSettings(
    vocab_size=320,
    hidden_size=64,
    num_layers=1,
    num_heads=2,
    num_key_value_heads=1,
    intermediate_size=128,
    context_tokens=128,
    pretraining=PretrainingSettings(train_tokens=2_000, row_tokens=32, threads=1),
)
DOCUMENTED = '\n\ndef function():\n    """Return the value of the thing that was asked for here."""\n'
SOURCES = [Source(seen_path(), code(150) + DOCUMENTED), Source(held_out_path(), code(60, seed="other"))]


def make_tiny(folder: Path, settings: ModelSettings = TINY, say=lambda _: None) -> BaseModel:
    return make(folder, settings, sources=SOURCES, say=say)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory) -> BaseModel:
    return make_tiny(tmp_path_factory.mktemp("base"))


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_transformers_loads_model_and_tokenizer_from_the_folder(tiny_model):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_model.directory, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model.directory, local_files_only=True)
    assert sum(parameter.numel() for parameter in model.parameters()) == tiny_model.num_parameters
    assert len(tokenizer) <= model.config.vocab_size
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 128
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_the_folder_has_safetensors_and_text_only(tiny_model):
    assert {path.suffix for path in tiny_model.directory.iterdir()} == {".json", ".jinja", ".safetensors"}


def test_weights_are_kept_in_bfloat16_and_loaded_in_float32(tiny_model):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    stored = load_file(tiny_model.directory / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    model = AutoModelForCausalLM.from_pretrained(tiny_model.directory, dtype=torch.float32)
    weights = dict(model.named_parameters())
    assert all(torch.equal(weights[name], tensor.float()) for name, tensor in stored.items())


def test_equal_settings_and_sources_give_equal_bytes(tiny_model, tmp_path):
    again = make_tiny(tmp_path)
    assert digests(again.directory) == digests(tiny_model.directory)
    assert again.held_out_loss == tiny_model.held_out_loss


@pytest.mark.parametrize("changes", [{"seed": 1}, {"precision": "bfloat16"}])
def test_seed_and_precision_decide_the_bytes(tiny_model, tmp_path, changes):
    settings = replace(TINY, pretraining=replace(TINY.pretraining, **changes))
    other = make_tiny(tmp_path, settings)
    assert digests(other.directory)["model.safetensors"] != digests(tiny_model.directory)["model.safetensors"]
    assert digests(other.directory)["tokenizer.json"] == digests(tiny_model.directory)["tokenizer.json"]


def test_training_lowers_the_loss_and_says_so(tmp_path):
    lines: list[str] = []
    trained = make_tiny(tmp_path, say=lines.append)
    # Nothing learnt is the logarithm of the vocabulary's size, 5.8 nats.
    assert trained.held_out_loss < 5.0
    assert f"step {-(-trained.train_tokens // 32 // 8)}/" in lines[-1]
    assert "tokens/s" in lines[-1]


def test_a_made_model_is_loaded_as_it_was_made(tiny_model):
    assert load(tiny_model.directory.parent) == tiny_model


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_changed_file_is_not_loaded(tiny_model, tmp_path, name):
    folder = shutil.copytree(tiny_model.directory.parent, tmp_path / "copy")
    with (folder / "model" / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(WrongDigest, match=f"{name} has sha256"):
        load(folder)


class TestShipped:
    def test_is_whole_and_small(self):
        base = load()
        assert base.directory == SHIPPED / "model"
        assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) <= 5 * 1024 * 1024

    def test_is_what_the_default_settings_make(self):
        config = json.loads((SHIPPED / "model" / "config.json").read_text())
        settings = ModelSettings()
        assert config["hidden_size"] == settings.hidden_size
        assert config["num_hidden_layers"] == settings.num_layers
        assert config["vocab_size"] == settings.vocab_size
        assert config["max_position_embeddings"] == settings.context_tokens


def test_the_template_marks_the_answer_and_its_end_alone(tiny_model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model.directory, local_files_only=True)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    row = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "value = 1"},
        {"role": "assistant", "content": "make_2(first)"},
    ]
    encoded = tokenizer.apply_chat_template(
        row, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    marked = [
        token for token, mark in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if mark
    ]
    assert tokenizer.decode(marked) == f"make_2(first){END}"
    prompt = tokenizer.apply_chat_template(row[:-1], tokenize=False, add_generation_prompt=True)
    assert prompt == f"<|system|>s{END}<|user|>value = 1{END}<|assistant|>"


def test_each_role_is_one_token(tiny_model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model.directory, local_files_only=True)
    assert all(len(tokenizer(f"<|{role}|>")["input_ids"]) == 1 for role in ROLES)
