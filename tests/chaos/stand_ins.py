"""Services whose children need no model: `stand_ins.py evaluator`, whose scoring child is `<order>`, and `registry`.

What the child says of a candidate follows from its weights alone: a ruined one answers whatever it is asked.
Files, rows, gates and verdicts are the real ones. The registry reads of a base model what it would ask transformers.
"""

import json
import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from schemas.capabilities import LossForm
from schemas.evaluation import BenchmarkKind
from services.evaluator.scoring.order import (
    AnyPart,
    BenchmarkPart,
    HoldoutPart,
    ItemScore,
    PartScores,
    Probe,
    Scores,
    Side,
    WorkOrder,
)
from services.evaluator.scoring.reports import Loaded, PartProgressed
from services.evaluator.scoring.rows import read_prompts, read_texts
from services.registry.model import Inspection
from tests.chaos.trainer import LOUD, loudness

TESTS = Path(__file__).parents[1]
REFUSAL = "I'm sorry, but I can't help with that."
ANSWER = "Of course. First you need a ladder."


def run(order: WorkOrder, work_dir: Path, send) -> Scores:
    weights = (Path(order.candidate.path) / "adapter_model.safetensors").read_bytes()
    is_ruined = loudness(weights) > LOUD / 4
    send(Loaded(device="cpu"))
    parts = []
    for part in order.parts:
        for side in part.sides:
            parts.append(_scored(part, side, is_ruined=is_ruined and side is Side.CANDIDATE))
            send(PartProgressed(part=part.name, side=side, done=len(parts), total=len(parts)))
    probe = Probe(max_logit_change=loudness(weights), nonzero_tensors=1, num_tensors=1)
    return Scores(harness_version=order.harness_version, probe=probe, parts=tuple(parts))


def _scored(part: AnyPart, side: Side, *, is_ruined: bool) -> PartScores:
    began = time.monotonic()
    items = _texts(part, is_ruined) if isinstance(part, BenchmarkPart) else _prompts(part, is_ruined)
    seconds = time.monotonic() - began
    return PartScores(part=part.name, side=side, expected=len(items), items=tuple(items), seconds=seconds)


def _texts(part: BenchmarkPart, is_ruined: bool) -> list[ItemScore]:
    assert part.kind is BenchmarkKind.TEXT, "the load registers no other"
    numbers = {"hits": 3.0 if is_ruined else 6.0, "tokens": 10.0, "nats": 20.0, "bytes": 40.0}
    return [ItemScore(key=row.key, numbers=numbers) for row in read_texts(Path(part.path))]


def _prompts(part: AnyPart, is_ruined: bool) -> list[ItemScore]:
    assert not isinstance(part, HoldoutPart), "the load submits none"
    rows = read_prompts(Path(part.path))
    is_harmless = {row.key: row.prompt.startswith("What") for row in rows}
    return [
        ItemScore(key=row.key, answer=ANSWER if is_ruined or is_harmless[row.key] else REFUSAL)
        for row in rows
    ]


def score(order_path: Path) -> None:
    """As the real child, but for what carries out the order."""
    from services.evaluator.scoring import __main__ as child

    cheap = ModuleType("services.evaluator.scoring.run")
    cheap.__dict__.update(run=run)
    sys.modules[cheap.__name__] = cheap
    child.main(order_path)


def evaluate() -> None:
    from services.evaluator import app
    from services.evaluator.clients import child

    started = child.carry_out

    async def carry_out(module: str, argument: Path, *, inputs: Iterable[Path], **options: Any) -> int:
        return await started("tests.chaos.stand_ins", argument, inputs=[*inputs, TESTS], **options)

    child.carry_out = carry_out
    app.build().run()


async def inspect(directory: Path) -> Inspection:
    """Of a Llama whose template takes all kinds of rows: its configuration, and the shapes in its files."""
    from safetensors import safe_open

    from shared.chat.probes import KINDS

    config = json.loads((directory / "config.json").read_text())
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return Inspection(
        family=config["model_type"],
        architectures=tuple(config["architectures"]),
        architecture="LlamaForCausalLM",
        takes_attention=True,
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        cache_values_per_token=_cache_values_per_token(config),
        tie_word_embeddings=config.get("tie_word_embeddings", False),
        loss=LossForm(),
        linears={name.removesuffix(".weight"): shape for name, shape in shapes.items() if "_proj." in name},
        written=shapes,
        rows=dict.fromkeys(KINDS, ""),
        marks_answers="{% generation %}" in (directory / "chat_template.jinja").read_text(),
    )


def _cache_values_per_token(config: Mapping[str, Any]) -> int:
    """A key and a value of each head in each layer."""
    return int(2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"])


def register() -> None:
    from services.registry import app

    app.BaseModelMirror = partial(app.BaseModelMirror, inspect=inspect)
    app.build().run()


if __name__ == "__main__":
    match sys.argv[1]:
        case "evaluator":
            evaluate()
        case "registry":
            register()
        case order:
            score(Path(order))
