"""What training needs of one device's memory, estimated from a base model's shape and a recipe. Pure arithmetic.

The factors of activations were counted: bytes that autograd keeps per token and layer, over models of several widths
(`bench/training/memory.py` holds the whole against measured peaks; see
docs/decisions/0027-memory-is-estimated-before-a-node-is-booked.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from schemas.base import Bytes, Value
from schemas.capabilities import BaseCapabilities
from schemas.specification import OptimizerName, Recipe, Weights

Precision = Literal["float32", "bfloat16"]

HIDDEN_BYTES: dict[tuple[Weights, Precision], int] = {
    ("adapter", "float32"): 31,
    ("adapter", "bfloat16"): 28,
    ("full", "float32"): 39,
    ("full", "bfloat16"): 34,
}
"""Kept per token, layer and unit of the hidden size."""
INNER_BYTES: dict[Precision, int] = {"float32": 17, "bfloat16": 9}
"""Kept per token, layer and unit of the feed-forward's inner size."""
MASK_BYTES = 3
"""Of each pair of tokens of a packed window: which of them may see each other, as truth and as a bias."""
LOGITS_AT_ONCE = 2**26
LOGIT_BYTES = 12
"""A logit in both types, and its gradient."""
FOUR_BIT_BYTES = 0.516
"""Of a quantised weight: 4 bits, its share of a scale of 8 for 64 weights, and that one's of 32 for 256 scales."""
VALUE_BYTES = 4
"""Of a trained value, and of its gradient: both are float32."""
STATE_BYTES: Mapping[OptimizerName, float] = {
    "adamw": 8,
    "adamw_8bit": 2.1,
    "paged_adamw_8bit": 2.1,
    "paged_adamw_32bit": 8,
    "muon": 4,
}
"""What an optimizer keeps of a trained value: moments, and scales of those that have 8 bits."""
FIXED_BYTES = 2**30
"""What a process has before its model: the context of a device, or the interpreter and its libraries."""


def inner_size_of(configured: int, hidden_size: int) -> int:
    """Where the configuration has none (0), nearly all families take four times the hidden size."""
    return configured or 4 * hidden_size


@dataclass(frozen=True)
class Shape:
    """What of a base model decides how much memory training takes."""

    num_parameters: int
    num_layers: int
    hidden_size: int
    inner_size: int
    vocab_size: int
    lora_values_per_rank: int

    @classmethod
    def of(cls, base: BaseCapabilities, *, num_parameters: int) -> Self:
        return cls(
            num_parameters=num_parameters,
            num_layers=base.num_layers,
            hidden_size=base.hidden_size,
            inner_size=inner_size_of(base.intermediate_size, base.hidden_size),
            vocab_size=base.vocab_size,
            lora_values_per_rank=base.lora_values_per_rank,
        )


class MemoryEstimate(Value):
    """Of each device, at the peak of a step."""

    weights_bytes: Bytes
    """The base, and its adapter where there is one."""
    optimizer_bytes: Bytes
    """Gradients and moments."""
    activations_bytes: Bytes
    logits_bytes: Bytes
    fixed_bytes: Bytes
    total_bytes: Bytes
    gradient_checkpointing: bool
    """Whether activations are computed again in the backward pass, which costs about a third more time."""


@dataclass(frozen=True)
class Setting:
    """Where and how large a recipe's forward passes are."""

    num_devices: int
    max_seq_length: int
    precision: Precision

    @classmethod
    def of(cls, recipe: Recipe, *, num_devices: int, max_seq_length: int, is_gpu: bool) -> Self:
        by_device: Precision = "bfloat16" if is_gpu else "float32"
        return cls(num_devices, max_seq_length, by_device if recipe.precision == "auto" else recipe.precision)


def estimate(
    shape: Shape, recipe: Recipe, setting: Setting, *, gradient_checkpointing: bool
) -> MemoryEstimate:
    trained = num_trained(shape, recipe)
    parts = {
        "weights_bytes": _weights(shape, recipe, setting),
        "optimizer_bytes": int((VALUE_BYTES + _state_on_device(recipe)) * trained) // setting.num_devices,
        "activations_bytes": _activations(shape, recipe, setting, recomputed=gradient_checkpointing),
        "logits_bytes": _logits(shape, recipe, setting),
        "fixed_bytes": FIXED_BYTES,
    }
    total = sum(parts.values())
    return MemoryEstimate(**parts, total_bytes=total, gradient_checkpointing=gradient_checkpointing)


def num_trained(shape: Shape, recipe: Recipe) -> int:
    """Values that the recipe trains, over all devices."""
    if recipe.kind == "full":
        return shape.num_parameters
    return recipe.lora.rank * shape.lora_values_per_rank


def bundle_bytes(shape: Shape, recipe: Recipe) -> int:
    """Of what a bundle holds of each trained value: itself and the optimizer's state."""
    return int((VALUE_BYTES + STATE_BYTES[recipe.optimizer]) * num_trained(shape, recipe))


def _state_on_device(recipe: Recipe) -> float:
    """A paged one's may be put out to the host's memory."""
    return 0.0 if recipe.optimizer.startswith("paged_") else STATE_BYTES[recipe.optimizer]


def _weights(shape: Shape, recipe: Recipe, setting: Setting) -> int:
    """Each device's share of the whole, and what is gathered or cast beside it for the products."""
    narrow = 2 if setting.precision == "bfloat16" else 4
    is_full = recipe.kind == "full"
    if recipe.is_quantized:
        return _quantized_weights(shape, recipe, setting, narrow)
    held = shape.num_parameters * (4 if is_full else narrow)
    adapter = 0 if is_full else 4 * num_trained(shape, recipe)
    if setting.num_devices == 1:
        cast = shape.num_parameters * 2 if is_full and narrow == 2 else 0
        return held + adapter + cast
    tables = 2 * shape.vocab_size * shape.hidden_size
    # Two layers, since the next one is fetched while one computes; the tables stay for the backward pass.
    layers = 2 * shape.num_parameters // max(1, shape.num_layers)
    return (held + adapter) // setting.num_devices + narrow * (tables + layers)


def _quantized_weights(shape: Shape, recipe: Recipe, setting: Setting, narrow: int) -> int:
    """Input table and head are counted as two that are not quantised, which is too much where they are one."""
    tables = min(shape.num_parameters, 2 * shape.vocab_size * shape.hidden_size)
    linears = int(FOUR_BIT_BYTES * (shape.num_parameters - tables))
    held = linears + narrow * tables + 4 * num_trained(shape, recipe)
    # One layer's weights at a time are as wide as the product's type.
    dequantised = narrow * shape.hidden_size * max(shape.inner_size, shape.hidden_size)
    if setting.num_devices == 1:
        return held + dequantised
    gathered = narrow * tables + 2 * linears // max(1, shape.num_layers)
    return held // setting.num_devices + gathered + dequantised


def _activations(shape: Shape, recipe: Recipe, setting: Setting, *, recomputed: bool) -> int:
    tokens = recipe.micro_batch_size * setting.max_seq_length
    per_layer = tokens * (
        HIDDEN_BYTES[recipe.kind, setting.precision] * shape.hidden_size
        + INNER_BYTES[setting.precision] * shape.inner_size
    )
    masks = MASK_BYTES * recipe.micro_batch_size * setting.max_seq_length**2
    # The layer that is in its backward pass has its gradients too.
    if not recomputed:
        return per_layer * (shape.num_layers + 1) + masks
    wide = setting.precision == "float32" or (recipe.kind == "full" and setting.num_devices == 1)
    inputs = tokens * shape.hidden_size * (4 if wide else 2)
    return inputs * shape.num_layers + 2 * per_layer + masks


def _logits(shape: Shape, recipe: Recipe, setting: Setting) -> int:
    all_of_them = recipe.micro_batch_size * setting.max_seq_length * shape.vocab_size
    return LOGIT_BYTES * min(all_of_them, max(LOGITS_AT_ONCE, shape.vocab_size))
