"""The evaluator with a scoring child that needs no model: `stand_ins.py evaluator`; the child is `<order>`.

What the child says of a candidate follows from its weights alone: a ruined one answers whatever it is asked.
Files, rows, gates and verdicts are the real ones.
"""

import sys
import time
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parents[2]))

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
from tests.chaos.trainer import LOUD, loudness

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

    child.SCORING = "tests.chaos.stand_ins"
    app.build().run()


if __name__ == "__main__":
    if sys.argv[1] == "evaluator":
        evaluate()
    else:
        score(Path(sys.argv[1]))
