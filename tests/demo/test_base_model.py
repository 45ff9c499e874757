"""A base model of a few thousand parameters, made for real: its files are what serving and training load."""

import hashlib
from pathlib import Path

import pytest

from deploy.demo.base_model import BaseModel, ModelSettings, find_or_make
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


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def made(cache) -> BaseModel:
    return find_or_make(TINY, sources=SOURCES, cache=cache, say=lambda _: None)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_transformers_loads_model_and_tokenizer_from_the_folder(made):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(made.directory, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(made.directory, local_files_only=True)
    assert sum(parameter.numel() for parameter in model.parameters()) == made.num_parameters
    assert len(tokenizer) <= model.config.vocab_size
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 128
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_the_folder_has_safetensors_and_text_only(made):
    assert {path.suffix for path in made.directory.iterdir()} == {".json", ".jinja", ".safetensors"}


def test_equal_settings_and_sources_give_equal_bytes(made, tmp_path):
    again = find_or_make(TINY, sources=SOURCES, cache=tmp_path, say=lambda _: None)
    assert digests(again.directory) == digests(made.directory)
    assert again.held_out_loss == made.held_out_loss


def test_a_made_model_is_found_again_without_a_word(made, cache):
    said: list[str] = []
    assert find_or_make(TINY, sources=SOURCES, cache=cache, say=said.append) == made
    assert said == []


def test_nothing_unfinished_stays_behind(made, cache):
    assert [path.name for path in cache.iterdir()] == [made.directory.parent.name]


def test_training_lowers_the_loss_and_says_so(tmp_path):
    said: list[str] = []
    found = find_or_make(TINY, sources=SOURCES, cache=tmp_path, say=said.append)
    # Nothing learnt is the logarithm of the vocabulary's size, 5.8 nats.
    assert found.held_out_loss < 5.0
    assert f"step {-(-found.train_tokens // 32 // 8)}/" in said[-1]
    assert "tokens/s" in said[-1]


def test_the_template_marks_the_answer_and_its_end_alone(made):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made.directory, local_files_only=True)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    row = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "value = 1"},
        {"role": "assistant", "content": "make_2(first)"},
    ]
    found = tokenizer.apply_chat_template(
        row, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    marked = [token for token, mark in zip(found["input_ids"], found["assistant_masks"], strict=True) if mark]
    assert tokenizer.decode(marked) == f"make_2(first){END}"
    prompt = tokenizer.apply_chat_template(row[:-1], tokenize=False, add_generation_prompt=True)
    assert prompt == f"<|system|>s{END}<|user|>value = 1{END}<|assistant|>"


def test_each_role_is_one_token(made):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made.directory, local_files_only=True)
    assert all(len(tokenizer(f"<|{role}|>")["input_ids"]) == 1 for role in ROLES)
