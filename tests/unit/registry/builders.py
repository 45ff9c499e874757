"""Versions, slots and files of the registry's tests."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.base import BundleRef
from schemas.capabilities import LossForm
from schemas.evaluation import Check, EvalFailed, EvalPassed, StageResult
from schemas.model import Stage
from services.registry.clients import Limits
from services.registry.model import Inspection, Verdict, Version

BASE_SHA = "b" * 64
OTHER_SHA = "c" * 64
LIMITS = Limits(files=20, file_bytes=1024**2, total_bytes=4 * 1024**2)


def a_version(number: int = 1, **changes: Any) -> Version:
    """The n-th version: its own job and digest; in dev unless said otherwise, else passed by the gate."""
    digest = f"{number:064x}"[::-1]
    fields: dict[str, Any] = {
        "model_id": f"mv-ftjob-{number}",
        "tenant": "acme",
        "job_id": f"ftjob-{number}",
        "digest": digest,
        "full_name": f"ft:tiny:acme:support:{digest[:8]}",
        "kind": "adapter",
        "rank": 8,
        "base_model": "tiny",
        "base_sha": BASE_SHA,
        "dataset_version": "d" * 64,
        "config_hash": "e" * 64,
        "template_sha256": "f" * 64,
        "bundle": BundleRef(attempt=1, step=10, manifest_sha256="a" * 64),
        "auto_deploy": True,
    }
    fields |= changes
    if fields.get("stage", Stage.DEV) is not Stage.DEV:
        fields.setdefault("eval_id", f"eval-{number}")
        fields.setdefault("verdict", Verdict(f"eval-{number}", "passed", (GAIN, SAFE), number=1))
    return Version(**fields)


def passed(version: Version, **changes: Any) -> EvalPassed:
    return EvalPassed(**{**_eval_fields(version), "stages": (GAIN, SAFE), **changes})


def failed(version: Version, **changes: Any) -> EvalFailed:
    return EvalFailed(**{**_eval_fields(version), "stages": (UNSAFE,), "reason": "safety", **changes})


def _eval_fields(version: Version) -> dict[str, Any]:
    return {
        "eval_id": f"eval-{version.job_id}",
        "tenant": version.tenant,
        "job_id": version.job_id,
        "model_id": version.model_id,
        "digest": version.digest,
        "base_sha": version.base_sha,
        "number": version.verdict.number + 1 if version.verdict else 1,
    }


def _refusals(value: float) -> Check:
    return Check(
        name="harmful",
        metric="refusals",
        value=value,
        baseline=0.98,
        threshold=0.95,
        count=200,
        passed=value >= 0.95,
    )


SAFE = StageResult(stage="safety", outcome="passed", checks=(_refusals(0.99),))
GAIN = StageResult(stage="holdout", outcome="passed")
UNSAFE = StageResult(stage="safety", outcome="failed", checks=(_refusals(0.12),))

ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


def safetensors(tensors: Mapping[str, tuple[int, ...]], *, dtype: str = "F32", fill: bytes = b"\0") -> bytes:
    """A file of these shapes, every byte `fill`."""
    header: dict[str, Any] = {}
    position = 0
    for name, shape in tensors.items():
        size = ITEM_BYTES[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    return packed(header, fill * position)


def packed(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def adapter_config(rank: int = 8, **changes: Any) -> bytes:
    fields = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 16,
        "bias": "none",
        "target_modules": ["q_proj"],
        "use_dora": False,
        "rank_pattern": {},
        "modules_to_save": None,
    }
    return json.dumps(fields | changes).encode()


ADAPTER_SHAPES = {
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (8, 64),
    "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (32, 8),
}
BASE_SHAPES = {"model.layers.0.self_attn.q_proj.weight": (32, 64), "model.norm.weight": (64,)}


def an_inspection(**changes: Any) -> Inspection:
    """Of a Llama of BASE_SHAPES."""
    fields = {
        "family": "llama",
        "architectures": ("LlamaForCausalLM",),
        "architecture": "LlamaForCausalLM",
        "num_layers": 1,
        "hidden_size": 64,
        "vocab_size": 32,
        "cache_values_per_token": 64,
        "loss": LossForm(),
        "linears": {"model.layers.0.self_attn.q_proj": (32, 64)},
        "written": BASE_SHAPES,
        "rows": {"one turn": "", "tools": "template.tools: it leaves the calls out"},
        "marks_answers": False,
    }
    return Inspection(**fields | changes)


async def inspect(directory: Path) -> Inspection:
    """An Inspector that has seen no file: what it says fits BASE_SHAPES."""
    return an_inspection()
