"""What training needs of one device's memory, estimated from a base model's shape and a recipe. Pure arithmetic.

The factors of activations were counted: bytes that autograd keeps per token and layer, over models of several widths
(`bench/training/memory.py` holds the whole against measured peaks; see
docs/decisions/0027-memory-is-estimated-before-a-node-is-booked.md).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Self

from schemas.base import Bytes, Count, Value
from schemas.capabilities import BaseCapabilities
from schemas.specification import OptimizerName, Recipe, Weights

Precision = Literal["float32", "bfloat16"]

HIDDEN_BYTES: dict[tuple[Weights, Precision], int] = {
    ("adapter", "float32"): 31,
    ("adapter", "bfloat16"): 20,
    ("full", "float32"): 39,
    ("full", "bfloat16"): 34,
}
"""Bytes kept per token, layer and unit of the hidden size."""
INNER_BYTES: dict[tuple[Weights, Precision], int] = {
    ("adapter", "float32"): 17,
    ("adapter", "bfloat16"): 8,
    ("full", "float32"): 17,
    ("full", "bfloat16"): 9,
}
"""Bytes kept per token, layer and unit of the feed-forward's inner size."""
MORE_HIDDEN_BYTES: Mapping[str, tuple[float, float, float, float]] = {
    "gemma3_text": (13.8, 13.5, 27.2, 23.2),
    "phi3": (11.5, 5.4, 12.0, 0.0),
    "qwen3": (5.4, 5.2, 10.8, 4.1),
}
"""Bytes that layers of a family keep beyond those of a Llama, in the order of `HIDDEN_BYTES`: for norms of queries
and keys or behind the blocks, for joined projections that are split. Other families count as a Llama."""
MASK_BYTES: Mapping[Precision, int] = {"float32": 4, "bfloat16": 2}
"""Bytes that each layer keeps for a pair of tokens of a packed window: whether one may see the other, as a bias."""
LOGITS_AT_ONCE = 2**26
LOGIT_BYTES = 12
"""Bytes of a logit in both types, and of its gradient."""
FOUR_BIT_BYTES = 0.516
"""Bytes of a quantised weight: 4 bits, its share of a scale of 8 for 64 weights and of one of 32 for 256 scales."""
LIVE_VALUES = 10**9
"""Weights that ZeRO's stage 3 leaves gathered, since they are used again soon."""
BUCKET_VALUES = 5 * 10**8
"""Gradients that ZeRO reduces at once."""
VALUE_BYTES = 4
"""Bytes of a trained value, and of its gradient: both are float32."""
STATE_BYTES: Mapping[OptimizerName, float] = {
    "adamw": 8,
    "adamw_8bit": 2.1,
    "paged_adamw_8bit": 2.1,
    "paged_adamw_32bit": 8,
    "muon": 4,
}
"""Bytes that an optimizer keeps of a trained value: moments, and scales of those that have 8 bits."""
FIXED_BYTES = 2**30
"""Bytes that a process has before its model: the context of a device, or the interpreter and its libraries."""


def inner_size_of(configured: int, hidden_size: int) -> int:
    """Return the inner size: without a configured one (0), nearly all families take four times the hidden size."""
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
    family: str = ""
    """`model_type` of its configuration."""
    num_tables: int = 2
    """Input table and head, or one that is both."""
    takes_borders: bool = True
    """Whether its attention can be given the borders between examples instead of a mask."""

    @classmethod
    def of(cls, base: BaseCapabilities, *, num_parameters: int) -> Self:
        return cls(
            num_parameters=num_parameters,
            num_layers=base.num_layers,
            hidden_size=base.hidden_size,
            inner_size=inner_size_of(base.intermediate_size, base.hidden_size),
            vocab_size=base.vocab_size,
            lora_values_per_rank=base.lora_values_per_rank,
            family=base.family,
            num_tables=1 if base.tie_word_embeddings else 2,
            takes_borders=base.attention == "sdpa",
        )


class MemoryEstimate(Value):
    """Memory that each device needs at the peak of a step."""

    weights_bytes: Bytes
    """Weights of the base, and of its adapter where there is one."""
    optimizer_bytes: Bytes
    """Gradients and moments."""
    activations_bytes: Bytes
    logits_bytes: Bytes
    fixed_bytes: Bytes
    total_bytes: Bytes
    gradient_checkpointing: bool
    """Whether activations are computed again in the backward pass, which costs about a third more time."""
    micro_batch_size: Count = 1
    """Windows per forward pass."""
    offload_optimizer: bool = False
    """Whether moments and the update of the weights are in the host's memory."""


@dataclass(frozen=True)
class Setting:
    """Where and how large a recipe's forward passes are."""

    num_devices: int
    max_seq_length: int
    precision: Precision
    is_gpu: bool = True
    has_borders: bool = True
    """Whether attention may be given the borders between examples, and needs no mask then."""

    @classmethod
    def of(cls, recipe: Recipe, *, num_devices: int, max_seq_length: int, is_gpu: bool) -> Self:
        by_device: Precision = "bfloat16" if is_gpu else "float32"
        precision = by_device if recipe.precision == "auto" else recipe.precision
        has_borders = not is_gpu or precision == "bfloat16"
        return cls(num_devices, max_seq_length, precision, is_gpu, has_borders)


@dataclass(frozen=True)
class _Moment:
    """Bytes of what comes and goes within a step, at one moment of it."""

    gradients: int
    activations: int
    logits: int = 0

    @property
    def total(self) -> int:
        return self.gradients + self.activations + self.logits


def estimate(
    shape: Shape, recipe: Recipe, setting: Setting, *, gradient_checkpointing: bool
) -> MemoryEstimate:
    peak = max(
        _moments(shape, recipe, setting, recomputed=gradient_checkpointing), key=lambda moment: moment.total
    )
    parts = {
        "weights_bytes": _weights(shape, recipe, setting),
        "optimizer_bytes": peak.gradients + _optimizer(shape, recipe, setting),
        "activations_bytes": peak.activations,
        "logits_bytes": peak.logits,
        "fixed_bytes": FIXED_BYTES,
    }
    total = sum(parts.values())
    return MemoryEstimate(
        **parts,
        total_bytes=total,
        gradient_checkpointing=gradient_checkpointing,
        micro_batch_size=recipe.micro_batch_size,
        offload_optimizer=recipe.sharded.offload_optimizer,
    )


def _moments(shape: Shape, recipe: Recipe, setting: Setting, *, recomputed: bool) -> Iterator[_Moment]:
    """Yield the highest moments of a step's last micro batch: which is the highest depends on the sizes."""
    layer = _kept_by_layer(shape, recipe, setting)
    kept = _inputs_of_layer(shape, recipe, setting) if recomputed else layer
    # The layer that is in its backward pass has its gradients too, and what is computed again for it.
    backward = 2 * layer if recomputed else layer
    gradients, bucket = _gradients(shape, recipe, setting), _bucket(shape, recipe)
    # Stage 3 of ZeRO keeps their memory over the update.
    are_there = _is_accumulated(recipe, setting) or recipe.sharded.zero_stage == 3
    before = gradients if are_there else 0
    # A system gives a process the pages that it writes, a GPU the whole bucket.
    before += bucket if setting.is_gpu or recipe.sharded.zero_stage == 3 else 0
    tables = _table_values(shape) if _are_tables_whole(recipe, setting) else 0
    yield _Moment(before, shape.num_layers * kept, _logits(shape, recipe, setting))
    head = tables // shape.num_tables
    yield _Moment(before + _width(setting) * head, shape.num_layers * kept + backward)
    yield _Moment(gradients + bucket + (_width(setting) + VALUE_BYTES) * tables, kept + backward)


def num_trained(shape: Shape, recipe: Recipe) -> int:
    """Return how many values the recipe trains, over all devices."""
    if recipe.kind == "full":
        return shape.num_parameters
    return recipe.lora.rank * shape.lora_values_per_rank


def bundle_bytes(shape: Shape, recipe: Recipe) -> int:
    """Return the bytes that a bundle holds of the trained values: each itself and the optimizer's state."""
    return int((VALUE_BYTES + STATE_BYTES[recipe.optimizer]) * num_trained(shape, recipe))


def _is_accumulated(recipe: Recipe, setting: Setting) -> bool:
    """Return whether a step may have several micro batches: gradients of others are there with activations then."""
    at_once = recipe.micro_batch_size * setting.num_devices
    return recipe.batch_size == "auto" or recipe.batch_size > at_once


def _gradients(shape: Shape, recipe: Recipe, setting: Setting) -> int:
    """Return the bytes of a device's gradients at the end of a backward pass.

    ZeRO shares them out from stage 2 on, FSDP2 those of an adapter at a step's last micro batch.
    """
    stage = recipe.sharded.zero_stage
    are_whole = stage == 1 or (
        stage is None and recipe.kind == "adapter" and _is_accumulated(recipe, setting)
    )
    if _are_weights_away(recipe) and not are_whole:
        return 0
    shares = 1 if are_whole else setting.num_devices
    return VALUE_BYTES * num_trained(shape, recipe) // shares


def _bucket(shape: Shape, recipe: Recipe) -> int:
    """Return the bytes that ZeRO copies gradients to before it reduces them."""
    return (
        0
        if recipe.sharded.zero_stage is None
        else VALUE_BYTES * min(num_trained(shape, recipe), BUCKET_VALUES)
    )


def _are_tables_whole(recipe: Recipe, setting: Setting) -> bool:
    """Return whether a device has the gradients of head and input table whole.

    FSDP2 has that of the head, then that of the input table too, whole until the end of a backward pass, and both
    once more in float32 where it reduces them.
    """
    return setting.num_devices > 1 and recipe.sharded.zero_stage is None and recipe.kind == "full"


def _optimizer(shape: Shape, recipe: Recipe, setting: Setting) -> int:
    """Return the bytes of what updates a device's share of the trained values, with ZeRO a copy of them too."""
    sharding = recipe.sharded
    # What is paged may be put out to the host's memory.
    is_away = recipe.optimizer.startswith("paged_") or sharding.offload_optimizer
    of_value = 0.0 if is_away else STATE_BYTES[recipe.optimizer]
    if sharding.zero_stage is not None and not sharding.offload_optimizer:
        of_value += VALUE_BYTES
    return int(of_value * num_trained(shape, recipe) / setting.num_devices)


def _width(setting: Setting) -> int:
    """Return the bytes of a number that products are computed with."""
    return 2 if setting.precision == "bfloat16" else 4


def _table_values(shape: Shape) -> int:
    return shape.num_tables * shape.vocab_size * shape.hidden_size


def _weights(shape: Shape, recipe: Recipe, setting: Setting) -> int:
    """Return the bytes of a device's share of the whole, and of what is gathered or cast beside it to compute."""
    narrow = _width(setting)
    is_full = recipe.kind == "full"
    if recipe.is_quantized:
        return _quantized_weights(shape, recipe, setting, narrow)
    held = shape.num_parameters * (4 if is_full else narrow)
    adapter = 0 if is_full else 4 * num_trained(shape, recipe)
    if not _are_weights_shared(recipe, setting):
        cast = shape.num_parameters * 2 if is_full and narrow == 2 else 0
        return held + adapter + cast
    tables = _table_values(shape)
    # Two layers, since the next one is fetched while one computes; the tables stay for the backward pass.
    layers = 2 * shape.num_parameters // max(1, shape.num_layers)
    held = 0 if _are_weights_away(recipe) else (held + adapter) // setting.num_devices
    if recipe.sharded.zero_stage is None:
        return held + narrow * (tables + layers)
    return held + (4 if is_full else narrow) * max(tables + layers, min(shape.num_parameters, LIVE_VALUES))


def _are_weights_shared(recipe: Recipe, setting: Setting) -> bool:
    return setting.num_devices > 1 and recipe.sharded.zero_stage not in (1, 2)


def _are_weights_away(recipe: Recipe) -> bool:
    """Return whether the weights are in the host's memory: FSDP2's offload is of them and their gradients too."""
    return recipe.sharded.zero_stage is None and recipe.sharded.offload_optimizer


def _quantized_weights(shape: Shape, recipe: Recipe, setting: Setting, narrow: int) -> int:
    """Return the bytes of weights in 4 bits; input table and head are not quantised."""
    tables = _table_values(shape)
    linears = int(FOUR_BIT_BYTES * (shape.num_parameters - tables))
    held = linears + narrow * tables + 4 * num_trained(shape, recipe)
    # One layer's weights at a time are as wide as the product's type.
    dequantised = narrow * shape.hidden_size * max(shape.inner_size, shape.hidden_size)
    if not _are_weights_shared(recipe, setting):
        return held + dequantised
    gathered = narrow * tables + 2 * linears // max(1, shape.num_layers)
    shared = 0 if _are_weights_away(recipe) else held // setting.num_devices
    return shared + gathered + dequantised


def _kept_by_layer(shape: Shape, recipe: Recipe, setting: Setting) -> int:
    """Return the bytes that autograd keeps of one layer for its backward pass."""
    tokens = recipe.micro_batch_size * setting.max_seq_length
    kind = recipe.kind, setting.precision
    more = MORE_HIDDEN_BYTES.get(shape.family, (0.0,) * len(HIDDEN_BYTES))[list(HIDDEN_BYTES).index(kind)]
    per_token = (HIDDEN_BYTES[kind] + more) * shape.hidden_size + INNER_BYTES[kind] * shape.inner_size
    has_mask = not (setting.has_borders and shape.takes_borders)
    mask = MASK_BYTES[setting.precision] * setting.max_seq_length if has_mask else 0
    return int(tokens * (per_token + mask))


def _inputs_of_layer(shape: Shape, recipe: Recipe, setting: Setting) -> int:
    """Return the bytes that are kept of a layer that is computed again."""
    tokens = recipe.micro_batch_size * setting.max_seq_length
    casts_weights = setting.num_devices > 1 and recipe.sharded.zero_stage is None
    is_wide = setting.precision == "float32" or (recipe.kind == "full" and not casts_weights)
    return tokens * shape.hidden_size * (4 if is_wide else 2)


def _logits(shape: Shape, recipe: Recipe, setting: Setting) -> int:
    all_of_them = recipe.micro_batch_size * setting.max_seq_length * shape.vocab_size
    return LOGIT_BYTES * min(all_of_them, max(LOGITS_AT_ONCE, shape.vocab_size))
