"""What tiny random models of each family can be trained with: the table of docs/families.md.

Each is inspected as at its registration, trained with each method by the training child, held to what registry and
gate ask of a model's files, and scored on a holdout of two rows.

    python -m bench.training.families            # prints the table
"""

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from schemas.base import DeviceKind
from schemas.capabilities import BaseCapabilities, LossForm
from schemas.specification import LoraSpec, Method, Recipe
from services.evaluator.scoring.order import Candidate, HoldoutPart, Side, WorkOrder
from services.evaluator.scoring.run import run
from services.registry.clients.mirror import describe
from services.registry.decide.capabilities import capabilities
from services.registry.inspection.networks import inspect
from services.trainer_agent.protocol import Ended, Outcome, PreflightDone, Report, Saved
from shared.device import Device
from shared.model_files.adapters import check_adapter
from shared.model_files.models import check_full, digests_beside_weights
from shared.model_files.tensors import require_finite, shapes_of
from tests.families import FAMILIES, TEXT, build_family
from tests.tiny_model import template_text
from tests.training.conftest import packed_windows
from tests.training.jobs import Inputs, a_recipe, an_order, carry_out, reports_of, write_dataset

RANK = 4
METHODS = (Method.SFT, Method.LORA)
MIN_LOGIT_CHANGE = 0.01
COLUMNS = ("family", "`model_type`", "attention", "logits", "LoRA targets", "names in files", "packing")
HEAD = (*COLUMNS, *METHODS)


@dataclass(frozen=True)
class Base:
    """A family's model, what it can do, and a dataset for it."""

    inputs: Inputs
    capabilities: BaseCapabilities
    shapes: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Trial:
    """`yes`, or why not."""

    verdict: str
    packing: str = ""


def build(name: str, directory: Path) -> Base:
    base_dir = build_family(directory / "base", name)
    windows = packed_windows(base_dir, TEXT)[:8]
    _, tensors = describe(base_dir, "tiny", "directory")
    return Base(
        Inputs(base_dir, write_dataset(directory / "dataset", windows, num_parts=1)),
        capabilities(inspect(base_dir), tensors),
        shapes_of(tensors),
    )


def recipe_of(method: Method) -> Recipe:
    lora = LoraSpec(rank=RANK) if method is Method.LORA else LoraSpec()
    recipe: Recipe = a_recipe(method=method, lora=lora, num_epochs=1, batch_size=2, learning_rate=1e-2)
    return recipe


def trial(base: Base, method: Method, directory: Path, *, device: Device = "cpu") -> Trial:
    """Raises what registry or gate say of the files."""
    if reason := base.capabilities.refused_methods.get(method):
        return Trial(f"refused: {reason}")
    order = an_order(base.inputs, recipe_of(method), device=DeviceKind(device))
    reports = carry_out(directory / "work", order)
    [ended] = reports_of(reports, Ended)
    if ended.outcome is not Outcome.COMPLETED:
        return Trial(f"failed: {ended.message}")
    model = reports_of(reports, Saved)[-1].directory / "model"
    _require_sound(model, method, base)
    return Trial(_scored(model, method, base, directory, device), _packing(reports))


def _packing(reports: tuple[Report, ...]) -> str:
    [done] = reports_of(reports, PreflightDone)
    return str(done.preparation.packing)


def _require_sound(model: Path, method: Method, base: Base) -> None:
    """As the registry does before it copies what was trained."""
    if method is Method.LORA:
        check_adapter(model, base.shapes, rank=RANK)
    else:
        check_full(model, base.shapes, digests_beside_weights(base.inputs.base_dir))
    require_finite(model)


def _scored(model: Path, method: Method, base: Base, directory: Path, device: Device) -> str:
    """As the gate does: both sides of a holdout."""
    row = {"messages": [{"role": "user", "content": "def"}, {"role": "assistant", "content": "x"}]}
    holdout = directory / "holdout.jsonl"
    holdout.write_text(f"{json.dumps(row)}\n" * 2)
    is_adapter = method is Method.LORA
    order = WorkOrder(
        base_path=str(base.inputs.base_dir),
        template_sha256=hashlib.sha256(template_text(base.inputs.base_dir).encode()).hexdigest(),
        candidate=Candidate(
            kind="adapter" if is_adapter else "full", path=str(model), rank=RANK if is_adapter else 0
        ),
        parts=(HoldoutPart(name="holdout", path=str(holdout), sides=(Side.BASE, Side.CANDIDATE)),),
        max_new_tokens=3,
        device=device,
    )
    scores = run(order, directory / "gate", lambda _: None)
    if scores.failure is not None:
        return f"failed: {scores.failure.message}"
    assert scores.probe is not None
    is_other = scores.probe.max_logit_change > MIN_LOGIT_CHANGE
    is_whole = [len(part.items) for part in scores.parts] == [2, 2]
    return "yes" if is_other and is_whole else f"failed: {scores.probe}"


def line(name: str, directory: Path) -> str:
    """A line of the table."""
    base = build(name, directory)
    trials = {}
    for method in METHODS:
        (directory / method).mkdir()
        trials[method] = trial(base, method, directory / method)
    capabilities = base.capabilities
    return _cells(
        name,
        capabilities.family,
        capabilities.attention,
        _form(capabilities.loss),
        ", ".join(capabilities.lora_targets) or "none",
        "converted" if capabilities.converts_names else "equal",
        trials[Method.SFT].packing,
        *(trials[method].verdict for method in METHODS),
    )


def _form(form: LossForm | None) -> str:
    if form is None:
        return "unknown"
    words = [f"times {form.scale:g}"] if form.scale != 1 else []
    words += [f"capped at {form.soft_cap:g}"] if form.soft_cap else []
    return " and ".join(words) or "of the head"


def table() -> str:
    lines = [_cells(*HEAD), _cells(*["---"] * len(HEAD))]
    for name in FAMILIES:
        with tempfile.TemporaryDirectory() as directory:
            lines.append(line(name, Path(directory)))
    return "\n".join(lines)


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(table())
