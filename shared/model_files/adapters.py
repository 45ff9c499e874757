"""Check that files are a plain LoRA adapter: pairs of matrices, and no option that changes what they mean."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.model_files.documents import read_object
from shared.model_files.tensors import TRAINED_DTYPES, BadModel, Shapes, Tensor, read_tensors

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MAX_CONFIG_BYTES = 1024 * 1024
MAX_RANK = 512
MAX_ALPHA = 1e6

FREE_OPTIONS = frozenset(
    {"peft_version", "base_model_name_or_path", "inference_mode", "task_type"}
    | {"r", "lora_alpha", "lora_dropout", "target_modules", "init_lora_weights", "use_rslora"}
)
"""Options of PEFT's LoraConfig that may differ from one plain adapter to another."""
PLAIN_OPTIONS: Mapping[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "use_qalora": False,
    "use_bdlora": None,
    "qalora_group_size": 16,
    "lora_bias": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
    "exclude_modules": None,
    "target_parameters": None,
    "trainable_token_indices": None,
    "layers_to_transform": None,
    "layers_pattern": None,
    "layer_replication": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "loftq_config": {},
    "eva_config": None,
    "corda_config": None,
    "lora_ga_config": None,
    "velora_config": None,
    "monteclora_config": None,
    "arrow_config": None,
    "kasa_config": None,
    "alora_invocation_tokens": None,
    "ensure_weight_tying": False,
    "auto_mapping": None,
    "revision": None,
}
"""All other options of PEFT's LoraConfig, with its defaults: any other value changes what the matrices mean."""

_MODULE_NAME = re.compile(r"[A-Za-z0-9_.]{1,200}")
_MATRIX_NAME = re.compile(r"base_model\.model\.(?P<module>[A-Za-z0-9_.]+)\.lora_(?P<matrix>[AB])\.weight")


def check_adapter(directory: Path, base: Shapes, *, rank: int) -> None:
    """Raise BadModel unless the directory holds a plain LoRA adapter of this rank and base model, and no more."""
    names = sorted(path.name for path in directory.iterdir())
    if names != [ADAPTER_CONFIG, ADAPTER_WEIGHTS]:
        raise BadModel(
            f"files {', '.join(names) or 'none'}: expected exactly {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}"
        )
    _check_options(read_object(directory / ADAPTER_CONFIG, max_bytes=MAX_CONFIG_BYTES), rank)
    _check_matrices(read_tensors(directory / ADAPTER_WEIGHTS, dtypes=TRAINED_DTYPES), base, rank)


def _check_options(config: Mapping[str, Any], rank: int) -> None:
    for name in sorted(set(config) - FREE_OPTIONS):
        if name not in PLAIN_OPTIONS or config[name] != PLAIN_OPTIONS[name]:
            expected = repr(PLAIN_OPTIONS[name]) if name in PLAIN_OPTIONS else "no such option"
            raise _bad_option(name, config[name], expected)
    declared = config.get("r")
    if type(declared) is not int or declared != rank or not 1 <= rank <= MAX_RANK:
        raise _bad_option("r", declared, f"{rank}, as in the lineage, from 1 to {MAX_RANK}")
    if not 0 < _number(config, "lora_alpha") <= MAX_ALPHA:
        raise _bad_option("lora_alpha", config["lora_alpha"], f"above 0 and up to {MAX_ALPHA:g}")
    if not 0 <= _number(config, "lora_dropout", default=0.0) < 1:
        raise _bad_option("lora_dropout", config["lora_dropout"], "from 0 to below 1")
    targets = config.get("target_modules")
    # Any other text would be taken as a regular expression.
    if targets != "all-linear" and not _are_module_names(targets):
        raise _bad_option("target_modules", targets, "all-linear or a list of module names")
    for name in ("init_lora_weights", "use_rslora"):
        if config.get(name, False) not in (True, False):
            raise _bad_option(name, config[name], "true or false")


def _number(config: Mapping[str, Any], name: str, *, default: float | None = None) -> float:
    value = config.get(name, default)
    if type(value) not in (int, float) or not math.isfinite(value):
        raise _bad_option(name, value, "a finite number")
    return float(value)


def _are_module_names(value: Any) -> bool:
    names = value if isinstance(value, list) else []
    return bool(names) and all(isinstance(name, str) and _MODULE_NAME.fullmatch(name) for name in names)


def _bad_option(name: str, value: Any, expected: str) -> BadModel:
    return BadModel(f"{ADAPTER_CONFIG}: {name} is {repr(value)[:80]}, expected {expected}")


def _check_matrices(tensors: Sequence[Tensor], base: Shapes, rank: int) -> None:
    """Raise BadModel unless each tensor is half of a pair that fits a matrix of the base model."""
    pairs: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        match = _MATRIX_NAME.fullmatch(tensor.name)
        if match is None:
            raise BadModel(
                f"tensor {tensor.name[:120]!r}: expected base_model.model.<module>.lora_A|B.weight"
            )
        pairs.setdefault(match["module"], {})[match["matrix"]] = tensor
    for module, matrices in pairs.items():
        weight = base.get(f"{module}.weight", ())
        if len(weight) != 2:
            raise BadModel(f"module {module[:120]!r}: the base model has no matrix of that name")
        if set(matrices) != {"A", "B"}:
            raise BadModel(
                f"module {module!r} has lora_{''.join(matrices)} alone, expected lora_A and lora_B"
            )
        for matrix, expected in (("A", (rank, weight[1])), ("B", (weight[0], rank))):
            if matrices[matrix].shape != expected:
                raise BadModel(
                    f"{module}.lora_{matrix}: shape {list(matrices[matrix].shape)}, expected {list(expected)}"
                )
