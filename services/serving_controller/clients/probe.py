"""Prove by asking: that a replica's base answers are right in mixed batches, that an adapter is active.

vLLM on CPU gives a base request that shares a batch with adapters the delta of the last adapter slot (its
index of "no adapter" is -1). It shows only once that slot is taken, so the probe takes all slots. An adapter
whose B is zero changes nothing and has a slot of its own: base requests sent to it are right.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from services.serving_controller.clients.vllm import Answer, VllmClient
from shared.log import get_logger

log = get_logger(__name__)

PROMPTS = (
    "The quick brown fox jumps over the lazy dog. ",
    "def add(left, right):\n    return left + ",
    "1, 2, 3, 4, 5, ",
    "Question: which of these is a colour?\nAnswer: ",
)
ROUNDS = 3
LOUD = 50.0
"""Gain of the probing adapter: its effect must be far above the rounding of any precision."""
MIN_EFFECT = 1e-3
"""Below this difference the loud adapter changes nothing that could be seen."""
WRONG_SHARE = 0.1
"""An answer this share of the loud adapter's effect away from the right one is wrong; rounding is far less."""
ACTIVE = 1e-5
"""Difference of a log-probability from which on an adapter changes its base model's answers."""

_LEAVES = ("o_proj", "out_proj", "down_proj", "c_proj", "dense", "q_proj", "qkv_proj")
"""Linear layers that vLLM gives adapters, by the names that architectures use."""


class ProbeFailed(RuntimeError):
    """What is served is not what was meant."""


async def prove_base(
    client: VllmClient, base_name: str, model_dir: Path, scratch: Path, *, slots: int
) -> str:
    """The name to send base requests to: the model's own, or that of an identity adapter which is loaded.

    slots: adapters that one batch holds. Raises ProbeFailed, LoadRefused, NoAnswer.
    """
    right = [await client.answer(base_name, prompt) for prompt in PROMPTS]
    identity = f"{base_name}@base"
    loud = [f"{base_name}@probe-{number}" for number in range(slots)]
    module, shape = pick_module(shapes_of(model_dir))
    await client.load(identity, write_adapter(scratch / "identity", module, shape, gain=0.0))
    path = write_adapter(scratch / "loud", module, shape, gain=LOUD)
    for name in loud:
        await client.load(name, path)
    effect = await _effect(client, right, loud[0])
    needed = effect < MIN_EFFECT or await _error(client, right, base_name, loud) > WRONG_SHARE * effect
    if needed and await _error(client, right, identity, loud) > max(WRONG_SHARE * effect, MIN_EFFECT):
        raise ProbeFailed(
            f"base answers of {base_name} are wrong in mixed batches, also by the identity adapter"
        )
    for name in loud if needed else [*loud, identity]:
        await client.unload(name)
    log.info("base probed", base=base_name, identity_needed=needed, effect=effect)
    return identity if needed else base_name


async def prove_active(client: VllmClient, base_name: str, name: str) -> None:
    """The adapter answers, with numbers, and not as its base model does. Raises ProbeFailed."""
    largest = 0.0
    for prompt in PROMPTS:
        tuned, base = await client.answer(name, prompt), await client.answer(base_name, prompt)
        require_answer(name, tuned)
        largest = max(largest, tuned.distance(base))
    if largest < ACTIVE:
        raise ProbeFailed(f"{name} answers exactly as its base model: largest difference {largest:.2g}")


async def prove_answers(client: VllmClient, name: str) -> None:
    """The model answers with numbers. Raises ProbeFailed."""
    for prompt in PROMPTS:
        require_answer(name, await client.answer(name, prompt))


def require_answer(name: str, answer: Answer) -> None:
    """Raises ProbeFailed unless it has tokens and every number is finite."""
    numbers = [number for place in answer.likeliest for number in place.values()]
    if not answer.tokens or not numbers or not all(math.isfinite(number) for number in numbers):
        raise ProbeFailed(f"{name} answers without numbers: {answer}")


async def _effect(client: VllmClient, right: Sequence[Answer], loud: str) -> float:
    changed = [await client.answer(loud, prompt) for prompt in PROMPTS]
    return min(answer.distance(base) for answer, base in zip(changed, right, strict=True))


async def _error(client: VllmClient, right: Sequence[Answer], base_name: str, loud: Sequence[str]) -> float:
    """Largest distance of a base answer in batches that hold every adapter."""
    worst = 0.0
    others = [(name, PROMPTS[number % len(PROMPTS)]) for number, name in enumerate(loud)]
    for _ in range(ROUNDS):
        found = await client.answers([*others, *((base_name, prompt) for prompt in PROMPTS)])
        mixed = found[len(others) :]
        worst = max(worst, *(answer.distance(base) for answer, base in zip(mixed, right, strict=True)))
    return worst


def shapes_of(model_dir: Path) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(model_dir.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return shapes


def pick_module(shapes: Mapping[str, Sequence[int]]) -> tuple[str, tuple[int, int]]:
    """A linear layer that can have an adapter, with its (outputs, inputs). Raises ProbeFailed."""
    for leaf in _LEAVES:
        for name in sorted(shapes):
            if name.endswith(f".{leaf}.weight") and len(shapes[name]) == 2:
                outputs, inputs = shapes[name]
                return name.removesuffix(".weight"), (outputs, inputs)
    raise ProbeFailed(f"no linear layer to probe with; expected a weight named {', '.join(_LEAVES)}")


def write_adapter(directory: Path, module: str, shape: tuple[int, int], *, gain: float) -> Path:
    """An adapter of rank 1 on one layer; with gain 0 it changes nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    outputs, inputs = shape
    random = np.random.default_rng(0)
    prefix = f"base_model.model.{module}"
    tensors = {
        f"{prefix}.lora_A.weight": random.standard_normal((1, inputs), dtype=np.float32),
        f"{prefix}.lora_B.weight": gain * random.standard_normal((outputs, 1), dtype=np.float32),
    }
    save_file(
        {name: tensor.astype(np.float32) for name, tensor in tensors.items()},
        directory / "adapter_model.safetensors",
    )
    config = {
        "peft_type": "LORA",
        "r": 1,
        "lora_alpha": 1,
        "bias": "none",
        "target_modules": [module.rpartition(".")[2]],
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory
