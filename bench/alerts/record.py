"""Curves of small real runs of our own trainer on a CPU, for `bench.alerts.curves`.

`python -m bench.alerts.record` trains a tiny model on the standard library's sources, with every method, several
rates, schedules and batch sizes, and writes `recorded.json.gz`. None has a planted fault.
"""

import argparse
import asyncio.base_events
import gzip
import inspect
import json
import random
import tempfile
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench import report
from bench.alerts.curves import RECORDED
from schemas.specification import CheckpointSpec, LoraSpec, Method, Recipe
from services.trainer_agent.protocol import Stepped
from tests.tiny_model import build_tiny_model
from tests.training.jobs import (
    WINDOW_TOKENS,
    Inputs,
    an_order,
    carry_out,
    reports_of,
    write_dataset,
    write_documents,
    write_preferences,
)

SEED = 20_261_127
NUM_WINDOWS = 640
NUM_PAIRS = 480


def main() -> None:
    torch.set_num_threads(1)
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        inputs = _inputs(Path(scratch))
        for number, (family, recipe) in enumerate(_recipes()):
            work_dir = Path(scratch) / f"run-{number}"
            steps = reports_of(carry_out(work_dir, an_order(inputs[family], recipe)), Stepped)
            runs.append(_run(family, recipe, steps))
            report.progress(
                f"{number}: {family} {recipe.method.value} {len(steps)} steps to {steps[-1].loss:.3f}"
            )
    RECORDED.write_bytes(gzip.compress(json.dumps(runs).encode(), mtime=0))


def _recipes() -> Iterator[tuple[str, Recipe]]:
    draw = random.Random(SEED)
    methods = (Method.LORA, Method.SFT, Method.CPT, Method.DPO)
    for number in range(36):
        method = methods[number % len(methods)]
        scale = 10 ** draw.uniform(-1.0, 0.3)
        rate = {Method.LORA: 5e-3, Method.DPO: 2e-3}.get(method, 2e-3) * scale
        yield (
            {Method.DPO: "pairs", Method.CPT: "texts"}.get(method, "answers"),
            Recipe(
                method=method,
                lora=LoraSpec(rank=draw.choice((4, 8)), dropout=draw.choice((0.0, 0.1))),
                learning_rate=rate,
                schedule=draw.choice(("cosine", "linear", "constant")),
                num_epochs=draw.choice((2, 3)),
                batch_size=draw.choice((2, 4)),
                micro_batch_size=2,
                seed=number,
                checkpoint=CheckpointSpec(every_steps=100_000, every_seconds=86_400),
            ),
        )


def _run(family: str, recipe: Recipe, steps: list[Stepped]) -> dict[str, Any]:
    return {
        "name": f"{recipe.method.value} {recipe.learning_rate:.2g} {recipe.schedule} {recipe.batch_size}",
        "family": family,
        "num_epochs": recipe.num_epochs,
        "loss": [_short(step.loss) for step in steps],
        "grad_norm": [_short(step.grad_norm) for step in steps],
        "learning_rate": [_short(step.learning_rate) for step in steps],
        "tokens_per_second": [round(step.tokens_per_second) for step in steps],
        "memory_mib": [step.memory_bytes // 2**20 for step in steps],
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _inputs(directory: Path) -> dict[str, Inputs]:
    text = "\n".join(inspect.getsource(module) for module in (argparse, typing, asyncio.base_events))
    base_dir = build_tiny_model(directory / "base", text=text)
    paragraphs = [each for each in text.split("\n\n") if each.strip()]
    lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 24]
    pairs = [
        (line[:10], line[10:32], other[:20]) for line, other in zip(lines, lines[NUM_PAIRS:], strict=False)
    ]
    return {
        "answers": Inputs(base_dir, write_dataset(directory / "answers", _windows(base_dir, text))),
        "texts": Inputs(base_dir, write_documents(directory / "texts", base_dir, paragraphs[:NUM_WINDOWS])),
        "pairs": Inputs(base_dir, write_preferences(directory / "pairs", base_dir, pairs[:NUM_PAIRS])),
    }


def _windows(base_dir: Path, text: str) -> list[list[tuple[list[int], list[int]]]]:
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(base_dir)(text)["input_ids"]
    draw = random.Random(SEED)
    starts = [draw.randrange(len(tokens) - WINDOW_TOKENS) for _ in range(NUM_WINDOWS)]
    answer = [int(place >= WINDOW_TOKENS // 3) for place in range(WINDOW_TOKENS)]
    return [[(tokens[start : start + WINDOW_TOKENS], answer)] for start in starts]


if __name__ == "__main__":
    main()
