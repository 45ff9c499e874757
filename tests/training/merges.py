"""Adapters as the platform's training writes them, on tiny base models, and orders to export them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from services.registry.export.order import Compared, ExportOrder, Impossible, Worked
from services.registry.export.run import run
from shared.model_files.tensors import BASE_DTYPES, read_tensors
from tests.families import build_family
from tests.model_files import adapter_config

RANK = 4
ALPHA = 16
ADAPTED = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "qkv_proj",
    "gate_up_proj",
)


def build_base(directory: Path, family: str, *, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Write a base model of the family with weights of this type, as hubs have them."""
    base = build_family(directory, family)
    weights = base / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"dtype": str(dtype).removeprefix("torch.")}))
    return base


def write_trained(
    directory: Path, base: Path, *, seed: int = 1, spread: float = 0.04, **options: Any
) -> Path:
    """Write an adapter of random matrices on each plain matrix of the base model's layers."""
    directory.mkdir()
    generator = torch.Generator().manual_seed(seed)
    pairs = {}
    for tensor in read_tensors(base / "model.safetensors", dtypes=BASE_DTYPES):
        module = tensor.name.removesuffix(".weight")
        is_expert = ".experts." in module
        if module.rpartition(".")[2] not in ADAPTED or len(tensor.shape) != 2 or is_expert:
            continue
        outputs, inputs = tensor.shape
        for name, shape in (("lora_A", (RANK, inputs)), ("lora_B", (outputs, RANK))):
            pairs[f"base_model.model.{module}.{name}.weight"] = spread * torch.randn(
                shape, generator=generator
            )
    names = sorted({name.split(".")[-3] for name in pairs})
    save_file(pairs, directory / "adapter_model.safetensors")
    config = adapter_config(RANK, lora_alpha=ALPHA, target_modules=names, task_type="CAUSAL_LM", **options)
    (directory / "adapter_config.json").write_bytes(config)
    return directory


def an_order(base: Path, model: Path, file_format: str = "safetensors", **changes: Any) -> ExportOrder:
    fields: dict[str, Any] = {
        "base": base,
        "model": model,
        "kind": "adapter",
        "rank": RANK,
        "format": file_format,
        "quantization": "f16" if file_format == "gguf" else None,
        "name": "ft:tiny:demo:export:12345678",
        "memory_bytes": 16 * 1024**3,
    }
    return ExportOrder.model_validate(fields | changes)


def carry_out(order: ExportOrder, work_dir: Path) -> Compared | Impossible:
    """Carry the order out in this process, and return its last report."""
    work_dir.mkdir()
    reports: list[Any] = []
    run(order, work_dir, reports.append)
    worked = [report for report in reports if isinstance(report, Worked)]
    assert reports[:-1] == worked
    return reports[-1]
