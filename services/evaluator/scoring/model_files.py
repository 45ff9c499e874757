"""Directories of base models, full models and adapters, checked before any loader opens them."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.evaluator.scoring.tensor_files import MalformedModel, TensorHeader, read_header

CONFIG = "config.json"
WEIGHTS_INDEX = "model.safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MODEL_SUFFIXES = frozenset({".safetensors", ".json", ".txt", ".jinja", ".model", ".md"})
"""No pickle and no code: nothing that runs when it is opened."""
MODEL_NAMES = frozenset({"LICENSE", "NOTICE"})
MAX_ALPHA = 1e6
ADAPTER_DTYPES = frozenset({"F32", "F16", "BF16"})
FREE_CONFIG = frozenset(
    {"peft_version", "base_model_name_or_path", "inference_mode", "r", "lora_alpha", "lora_dropout"}
    | {"target_modules", "task_type", "init_lora_weights"}
)
"""Adapter settings that may differ from the library's defaults."""
_NAME = re.compile(r"^[A-Za-z0-9_.]{1,200}$")
_TENSOR = re.compile(r"^base_model\.model\.(?P<module>[A-Za-z0-9_.]+)\.lora_(?P<matrix>[AB])\.weight$")

Shapes = Mapping[str, tuple[int, ...]]


def check_model(directory: Path) -> Shapes:
    """The tensors of a base or full model. Raises MalformedModel."""
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or _is_allowed(path)):
            raise MalformedModel(f"{path.name}: expected only files of {', '.join(sorted(MODEL_SUFFIXES))}")
        if path.name.endswith("config.json"):
            _refuse_code(path)
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        for name, tensor in read_header(path).items():
            if name in shapes:
                raise MalformedModel(f"{path.name}: tensor {name[:120]!r} is in an earlier file too")
            shapes[name] = tensor.shape
    if not shapes:
        raise MalformedModel(f"{directory.name}: no *.safetensors file, expected the weights")
    return shapes


def check_full(directory: Path, base_directory: Path, base: Shapes) -> None:
    """A full model has its base's tensors and shapes, and its base's other files as they are."""
    _compare(check_model(directory), base)
    if not (directory / CONFIG).exists():
        raise MalformedModel(f"{directory.name}: no {CONFIG}, expected the base model's")
    for path in sorted(directory.iterdir()):
        twin = base_directory / path.name
        if path.suffix == ".safetensors" or path.name == WEIGHTS_INDEX:
            continue
        if not twin.exists() or path.read_bytes() != twin.read_bytes():
            raise MalformedModel(f"{path.name}: differs from the base model's file, expected the same bytes")


def _compare(shapes: Shapes, base: Shapes) -> None:
    if odd := sorted(set(shapes) ^ set(base)):
        where = "not in the base model" if odd[0] in shapes else "missing"
        raise MalformedModel(f"tensor {odd[0][:120]!r} is {where}")
    for name, shape in shapes.items():
        if shape != base[name]:
            raise MalformedModel(f"tensor {name!r}: shape {shape}, expected the base model's {base[name]}")


def check_adapter(
    directory: Path, base: Shapes, *, rank: int, max_rank: int, defaults: Mapping[str, Any]
) -> None:
    """A plain LoRA adapter of the base. `defaults`: the library's configuration. Raises MalformedModel."""
    names = sorted(path.name for path in directory.iterdir())
    if names != sorted((ADAPTER_CONFIG, ADAPTER_WEIGHTS)):
        raise MalformedModel(f"files {names}, expected {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS} alone")
    config = _read_object(directory / ADAPTER_CONFIG)
    _check_config(config, rank=rank, max_rank=max_rank, defaults=defaults)
    _check_matrices(read_header(directory / ADAPTER_WEIGHTS), base, rank=config["r"])


def _check_config(
    config: Mapping[str, Any], *, rank: int, max_rank: int, defaults: Mapping[str, Any]
) -> None:
    for name in sorted(set(config) - FREE_CONFIG):
        if name not in defaults or config[name] != defaults[name]:
            expected = repr(defaults[name]) if name in defaults else "no such field"
            raise _bad_config(name, config[name], expected)
    declared = config.get("r")
    if type(declared) is not int or not 1 <= declared <= max_rank or declared != rank:
        raise _bad_config("r", declared, f"{rank}, as in the lineage, from 1 to {max_rank}")
    if not 0 < _number(config, "lora_alpha") <= MAX_ALPHA:
        raise _bad_config("lora_alpha", config["lora_alpha"], f"above 0 and up to {MAX_ALPHA}")
    if not 0 <= _number(config, "lora_dropout") < 1:
        raise _bad_config("lora_dropout", config["lora_dropout"], "from 0 to below 1")
    targets = config.get("target_modules")
    # A string would be taken as a regular expression.
    if targets != "all-linear" and not _are_names(targets):
        raise _bad_config("target_modules", targets, "`all-linear` or a list of module names")
    if config.get("init_lora_weights") not in (True, False):
        raise _bad_config("init_lora_weights", config.get("init_lora_weights"), "true or false")


def _check_matrices(tensors: Mapping[str, TensorHeader], base: Shapes, *, rank: int) -> None:
    pairs: dict[str, set[str]] = {}
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None or f"{match['module']}.weight" not in base:
            raise MalformedModel(f"tensor {name[:120]!r} belongs to no linear layer of the base model")
        weight = base[f"{match['module']}.weight"]
        if len(weight) != 2:
            raise MalformedModel(f"tensor {name!r}: its layer has shape {weight}, expected a matrix")
        expected = (rank, weight[1]) if match["matrix"] == "A" else (weight[0], rank)
        if tensor.shape != expected or tensor.dtype not in ADAPTER_DTYPES:
            raise MalformedModel(
                f"tensor {name!r}: {tensor.dtype}{list(tensor.shape)}, expected {list(expected)} in"
                f" {', '.join(sorted(ADAPTER_DTYPES))}"
            )
        pairs.setdefault(match["module"], set()).add(match["matrix"])
    for module, matrices in pairs.items():
        if matrices != {"A", "B"}:
            raise MalformedModel(f"layer {module!r} has matrix {matrices.pop()} alone, expected A and B")


def _is_allowed(path: Path) -> bool:
    return path.suffix in MODEL_SUFFIXES or path.name in MODEL_NAMES


def _refuse_code(path: Path) -> None:
    if "auto_map" in _read_object(path):
        raise MalformedModel(f"{path.name}: `auto_map` names code to run, expected none")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise MalformedModel(f"{path.name}: {error}, expected a JSON object") from error
    if not isinstance(config, dict):
        raise MalformedModel(f"{path.name}: {type(config).__name__}, expected a JSON object")
    return config


def _number(config: Mapping[str, Any], name: str) -> float:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _bad_config(name, value, "a finite number")
    return float(value)


def _are_names(value: Any) -> bool:
    names = value if isinstance(value, list) else []
    return bool(names) and all(isinstance(name, str) and _NAME.fullmatch(name) for name in names)


def _bad_config(name: str, value: Any, expected: str) -> MalformedModel:
    return MalformedModel(f"{ADAPTER_CONFIG}: {name} is {str(value)[:80]!r}, expected {expected}")
