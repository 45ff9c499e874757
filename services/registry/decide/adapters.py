"""Whether the files of an artifact are an adapter (or full weights) as the job says. Pure."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.artifacts import FileEntry
from services.registry.decide.weights import Tensor
from shared.errors import Rejected

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
FULL_WEIGHTS = "model.safetensors"
MAX_CONFIG_BYTES = 1024 * 1024
MAX_RANK = 512

_NAME = re.compile(r"^base_model\.model\.(?P<module>[A-Za-z0-9_.]+)\.lora_(?P<side>[AB])\.weight$")

_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "use_rslora": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": ([], None),
    "layer_replication": ([], None),
    "auto_mapping": (None,),
}
"""Options that change what an adapter means, and the values with which it means what we trained."""

Shapes = Mapping[str, Sequence[int]]


class BadAdapter(Rejected):
    """The files are not the adapter that the job announced."""


def require_files(paths: Sequence[str]) -> None:
    """An adapter is exactly two files. Raises BadAdapter."""
    if sorted(paths) != [CONFIG, WEIGHTS]:
        raise BadAdapter(
            f"files {', '.join(sorted(paths)) or 'none'}: expected exactly {CONFIG} and {WEIGHTS}"
        )


def require_config(text: bytes, *, rank: int) -> None:
    """Raises BadAdapter unless `adapter_config.json` is a plain LoRA of that rank."""
    config = _config(text)
    for option, allowed in _PLAIN.items():
        value = config.get(option, allowed[-1])
        if value not in allowed:
            raise BadAdapter(f"{CONFIG}: {option} is {str(value)[:80]}, expected {allowed[0]!r}")
    if type(config.get("r")) is not int or config["r"] != rank or not 1 <= rank <= MAX_RANK:
        raise BadAdapter(f"{CONFIG}: r is {config.get('r')!r}, expected {rank} (1 to {MAX_RANK})")
    alpha: Any = config.get("lora_alpha")
    if type(alpha) not in (int, float) or not math.isfinite(alpha) or alpha <= 0:
        raise BadAdapter(f"{CONFIG}: lora_alpha is {alpha!r}, expected a number above 0")


def require_tensors(tensors: Sequence[Tensor], *, rank: int, base: Shapes) -> None:
    """Raises BadAdapter unless every tensor is half of a pair that fits a weight of the base model."""
    pairs: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        match = _NAME.fullmatch(tensor.name)
        if match is None:
            raise BadAdapter(f"tensor {tensor.name!r}: expected base_model.model.<module>.lora_A|B.weight")
        pairs.setdefault(match["module"], {})[match["side"]] = tensor
    if not pairs:
        raise BadAdapter(f"{WEIGHTS} holds no tensor")
    for module, sides in pairs.items():
        _require_pair(module, sides, rank, base.get(f"{module}.weight"))


def _require_pair(module: str, sides: Mapping[str, Tensor], rank: int, base: Sequence[int] | None) -> None:
    if set(sides) != {"A", "B"}:
        raise BadAdapter(f"module {module}: found lora_{' and lora_'.join(sorted(sides))}, expected A and B")
    if base is None or len(base) != 2:
        raise BadAdapter(f"module {module}: the base model has no matrix of that name")
    outputs, inputs = base
    expected = {"A": (rank, inputs), "B": (outputs, rank)}
    for side, tensor in sides.items():
        if tensor.shape != expected[side]:
            raise BadAdapter(f"{module}.lora_{side}: shape {tensor.shape}, expected {expected[side]}")


def require_full_weights(tensors: Sequence[Tensor], *, base: Shapes) -> None:
    """Raises BadAdapter unless the tensors are those of the base model, shape for shape."""
    shapes = {tensor.name: list(tensor.shape) for tensor in tensors}
    # Tied models are saved with or without the head that equals the embedding.
    optional = shapes.keys() & {"lm_head.weight"} - base.keys()
    expected = {name: list(shape) for name, shape in base.items()} | {name: shapes[name] for name in optional}
    if shapes != expected:
        odd = sorted(
            name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name)
        )
        raise BadAdapter(
            f"{len(odd)} tensors differ from the base model's, first {odd[0]!r}: "
            f"found {shapes.get(odd[0])}, expected {expected.get(odd[0])}"
        )


def require_base_files(files: Sequence[FileEntry], *, base: Sequence[FileEntry]) -> None:
    """A full model is its weights, and the base model's own configuration and tokenizer byte for byte.

    Raises: BadAdapter.
    """
    known = {file.path: file.sha256 for file in base}
    paths = {file.path for file in files}
    if FULL_WEIGHTS not in paths:
        raise BadAdapter(f"files {', '.join(sorted(paths))}: expected {FULL_WEIGHTS} among them")
    for file in files:
        if file.path != FULL_WEIGHTS and known.get(file.path) != file.sha256:
            raise BadAdapter(f"{file.path}: expected the base model's file of that name, byte for byte")


def _config(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_CONFIG_BYTES:
        raise BadAdapter(f"{CONFIG} has {len(text)} bytes, expected at most {MAX_CONFIG_BYTES}")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadAdapter(f"{CONFIG} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise BadAdapter(f"{CONFIG} holds a {type(config).__name__}, expected an object")
    return config
