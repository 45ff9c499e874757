"""A tiny base model, adapters of it, and files of rows, made once for the whole directory."""

import json
import shutil
from pathlib import Path

import pytest

from tests.tiny_model import build_tiny_model, template_text

WORDS = [
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa",
    "lambda", "mu", "nu", "xi", "omicron", "pi", "rho", "sigma", "tau",
]  # fmt: skip
TEXT = "\n".join(f"The {a} module documents {b} and {c}." for a in WORDS for b in WORDS for c in WORDS[:3])


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.torch)


@pytest.fixture(scope="session", autouse=True)
def _few_threads():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def base_path(tmp_path_factory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("base"), text=TEXT)


@pytest.fixture(scope="session")
def template_sha256(base_path) -> str:
    import hashlib

    return hashlib.sha256(template_text(base_path).encode()).hexdigest()


@pytest.fixture(scope="session")
def adapter_path(base_path, tmp_path_factory) -> Path:
    """Trained for a few steps to answer every question with `alpha`."""
    return train_adapter(base_path, tmp_path_factory.mktemp("adapter"), answer="alpha", steps=60)


@pytest.fixture
def copy_of(tmp_path):
    def copy(source: Path) -> Path:
        return Path(shutil.copytree(source, tmp_path / f"copy-{len(list(tmp_path.iterdir()))}"))

    return copy


@pytest.fixture
def rows(tmp_path):
    """rows(name, [row, ...]) writes a file of JSON lines."""

    def write(name: str, found: list[dict]) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in found))
        return path

    return write


def question(word: str) -> dict:
    return {"role": "user", "content": f"Which module documents {word}?"}


def train_adapter(base_path: Path, directory: Path, *, answer: str | None, steps: int, rank: int = 8) -> Path:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base_path, local_files_only=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base_path), config).train()
        if steps:
            _train(model, tokenizer, answer, steps)
    directory.mkdir(exist_ok=True)
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    return directory


def _train(model, tokenizer, answer, steps):
    import torch

    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    for step in range(steps):
        messages = [question(WORDS[step % len(WORDS)]), {"role": "assistant", "content": answer}]
        rendered = tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids = torch.tensor([rendered["input_ids"]])
        labels = torch.where(torch.tensor([rendered["assistant_masks"]]) == 1, ids, -100)
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
