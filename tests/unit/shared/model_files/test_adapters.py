"""One definition of a plain LoRA adapter."""

import json

import pytest

from shared.model_files.adapters import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    MAX_CONFIG_BYTES,
    MAX_RANK,
    PLAIN_OPTIONS,
    check_adapter,
)
from shared.model_files.tensors import BadModel
from tests.model_files import ADAPTER_SHAPES, BASE_SHAPES, adapter_config, safetensors

A, B = ADAPTER_SHAPES


@pytest.fixture
def directory(tmp_path):
    return write(tmp_path / "adapter", {})


def write(directory, files):
    """A sound adapter but for `files`; None leaves one out."""
    sound = {ADAPTER_CONFIG: adapter_config(), ADAPTER_WEIGHTS: safetensors(ADAPTER_SHAPES)}
    for name, content in (sound | files).items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content)
    return directory


def test_accepts_the_adapter_that_the_job_announced(directory):
    check_adapter(directory, BASE_SHAPES, rank=8)


@pytest.mark.parametrize(
    "files",
    [
        {ADAPTER_CONFIG: None, ADAPTER_WEIGHTS: None},
        {ADAPTER_WEIGHTS: None},
        {ADAPTER_CONFIG: None},
        {ADAPTER_WEIGHTS: None, "adapter_model.bin": b""},
        {"new_embeddings.safetensors": b""},
        {"modeling.py": b""},
        {"x/adapter_config.json": b"", ADAPTER_CONFIG: None},
    ],
    ids=str,
)
def test_refuses_other_files(directory, files):
    write(directory, files)
    with pytest.raises(BadModel, match="expected exactly"):
        check_adapter(directory, BASE_SHAPES, rank=8)


@pytest.mark.parametrize(
    "changes",
    [
        {"r": 0},
        {"r": 16},
        {"r": 8.0},
        {"r": True},
        {"lora_alpha": 0},
        {"lora_alpha": float("inf")},
        {"lora_alpha": float("nan")},
        {"lora_alpha": None},
        {"peft_type": "IA3"},
        {"bias": "all"},
        {"use_dora": True},
        {"use_dora": 1},
        {"use_rslora": "yes"},
        {"rank_pattern": {"q_proj": 512}},
        {"alpha_pattern": {"q_proj": 1}},
        {"modules_to_save": ["lm_head"]},
        {"auto_mapping": {"base_model_class": "X"}},
        {"layer_replication": [[0, 4]]},
        *({option: "odd"} for option in PLAIN_OPTIONS),
        *({option: 1e9} for option in PLAIN_OPTIONS),
        {"lora_alpha": 1e7},
        {"lora_alpha": "16"},
        {"lora_alpha": True},
        {"lora_dropout": 1},
        {"lora_dropout": -0.1},
        {"lora_dropout": None},
        {"target_modules": ".*(a+)+$"},
        {"target_modules": []},
        {"target_modules": [1]},
        {"target_modules": ["../x"]},
        {"target_modules": None},
        {"init_lora_weights": "pissa"},
        {"unknown_field": 1},
    ],
    ids=str,
)
def test_refuses_a_configuration_that_means_something_else(directory, changes):
    (option,) = changes
    write(directory, {ADAPTER_CONFIG: adapter_config(**changes)})
    with pytest.raises(BadModel, match=f"{ADAPTER_CONFIG}: {option} is"):
        check_adapter(directory, BASE_SHAPES, rank=8)


def test_takes_what_is_not_said_as_peft_takes_it(directory):
    config = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}
    write(directory, {ADAPTER_CONFIG: json.dumps(config).encode()})
    check_adapter(directory, BASE_SHAPES, rank=8)


def test_refuses_a_rank_above_the_limit(directory):
    write(directory, {ADAPTER_CONFIG: adapter_config(rank=MAX_RANK + 1)})
    with pytest.raises(BadModel, match="from 1 to 512"):
        check_adapter(directory, BASE_SHAPES, rank=MAX_RANK + 1)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b" " * (MAX_CONFIG_BYTES + 1)])
def test_refuses_a_configuration_that_is_no_object(directory, text):
    write(directory, {ADAPTER_CONFIG: text})
    with pytest.raises(BadModel, match=ADAPTER_CONFIG):
        check_adapter(directory, BASE_SHAPES, rank=8)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, "0 tensors"),
        ({A: (8, 64)}, "lora_A alone"),
        ({A: (16, 64), B: (32, 16)}, "expected"),
        ({A: (8, 63), B: (32, 8)}, "lora_A: shape"),
        ({A: (8, 64), B: (33, 8)}, "lora_B: shape"),
        ({A: (8, 64), B: (32, 8), "base_model.model.lm_head.weight": (1, 1)}, "lora_A|B"),
        ({name.replace("q_proj", "x_proj"): shape for name, shape in ADAPTER_SHAPES.items()}, "no matrix"),
        ({"base_model.model.model.norm.lora_A.weight": (8, 64), "base_model.model.model.norm.lora_B.weight": (1, 8)},
         "no matrix"),
    ],
)  # fmt: skip
def test_refuses_tensors_that_do_not_fit_the_base_model(directory, shapes, message):
    write(directory, {ADAPTER_WEIGHTS: safetensors(shapes)})
    with pytest.raises(BadModel, match=message.replace("|", r"\|")):
        check_adapter(directory, BASE_SHAPES, rank=8)
