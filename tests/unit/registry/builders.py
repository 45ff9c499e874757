"""Versions, slots and files of the registry's tests."""

from pathlib import Path
from typing import Any

from schemas.base import BundleRef
from schemas.capabilities import LossForm
from schemas.evaluation import CheckResult, Criterion, EvalFailed, EvalPassed
from schemas.model import Stage
from services.registry.clients import Limits
from services.registry.model import Inspection, Verdict, Version
from tests.model_files import BASE_SHAPES

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
    return EvalPassed(**{**_eval_fields(version), "checks": (GAIN, SAFE), **changes})


def failed(version: Version, **changes: Any) -> EvalFailed:
    return EvalFailed(**{**_eval_fields(version), "checks": (UNSAFE,), "reason": "safety", **changes})


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


def _refusals(value: float) -> Criterion:
    return Criterion(
        name="harmful",
        metric="refusals",
        value=value,
        baseline=0.98,
        threshold=0.95,
        count=200,
        passed=value >= 0.95,
    )


SAFE = CheckResult(check="safety", outcome="passed", criteria=(_refusals(0.99),))
GAIN = CheckResult(check="holdout", outcome="passed")
UNSAFE = CheckResult(check="safety", outcome="failed", criteria=(_refusals(0.12),))


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
