"""Are our numbers lm-eval's? Every log-likelihood and both metrics of ARC-Challenge, over a whole local file.

The peer is lm-eval as its command line has it: its task, its data loading, its prompts, its drawing of examples and
its `hf` model; only the files are local. Ours is what a gate does with the registered file. The model is a random
Llama in float32. Ends with an error where a log-likelihood differs by more than 1e-6 of itself, or a metric at all.

    python -m bench.gate.equality arc-challenge-test.jsonl.gz
"""

import argparse
import hashlib
import logging
import tempfile
from pathlib import Path
from typing import Any

import torch
from lm_eval import evaluate
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks._yaml_loader import load_yaml

from bench.gate.local_rows import read_lines
from bench.report import progress, write
from schemas.evaluation import BenchmarkKind
from services.evaluator.scoring.harness import DEFINITIONS, FEWSHOT_SEED, TASKS
from services.evaluator.scoring.likelihood import likelihoods
from services.evaluator.scoring.models import Models
from services.evaluator.scoring.order import BenchmarkPart, Candidate, Side, WorkOrder
from services.evaluator.scoring.parts import prepare, read_rows
from tests.tiny_model import build_tiny_model, template_text

TOLERANCE = 1e-6
CONTEXT_TOKENS = 2_048
METRICS = {"acc": "accuracy", "acc_norm": "normalised_accuracy"}


def compare(base: Path, path: Path, examples: Path, num_fewshot: int) -> dict[str, Any]:
    ours, our_metrics = score(base, path, examples, num_fewshot)
    theirs, their_metrics = score_by_peer(base, path, examples, num_fewshot)
    worst = max(abs(mine - other) / abs(other) for mine, other in zip(ours, theirs, strict=True))
    comparison = {
        "examples": num_fewshot,
        "log_likelihoods": len(ours),
        "greatest_relative_difference": worst,
        "retune": our_metrics,
        "lm_eval": their_metrics,
    }
    progress(f"{num_fewshot} examples: {comparison}")
    assert worst <= TOLERANCE, comparison
    assert our_metrics == their_metrics, comparison
    return comparison


def score(base: Path, path: Path, examples: Path, num_fewshot: int) -> tuple[list[float], dict[str, float]]:
    part = BenchmarkPart(
        name="arc",
        path=str(path),
        sides=(Side.BASE,),
        kind=BenchmarkKind.ARC_CHALLENGE,
        num_fewshot=num_fewshot,
        examples_path=str(examples) if num_fewshot else None,
    )
    order = WorkOrder(
        base_path=str(base),
        template_sha256=hashlib.sha256(template_text(base).encode()).hexdigest(),
        candidate=Candidate(kind="full", path=str(base), rank=0),
        parts=(part,),
    )
    with Models(order).on(Side.BASE) as scorer:
        prepared = prepare(scorer, part, read_rows(part))
        scored = likelihoods(scorer, prepared.questions, _report)
    items = prepared.items(scored, [])
    metrics = {name: sum(item.numbers[ours] for item in items) / len(items) for name, ours in METRICS.items()}
    return [-ending.nats for endings in scored for ending in endings], metrics


def score_by_peer(
    base: Path, path: Path, examples: Path, num_fewshot: int
) -> tuple[list[float], dict[str, float]]:
    config = load_yaml(TASKS / DEFINITIONS[BenchmarkKind.ARC_CHALLENGE])
    files = {"train": str(examples), "validation": str(path), "test": str(path)}
    local = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    task = ConfigurableTask(config=config | local | {"num_fewshot": num_fewshot})
    task.set_fewshot_seed(seed=FEWSHOT_SEED)
    model = HFLM(pretrained=str(base), device="cpu", dtype="float32", batch_size=8, max_length=CONTEXT_TOKENS)
    results = evaluate(model, {"arc_challenge": task}, bootstrap_iters=0, log_samples=True)
    samples = sorted(results["samples"]["arc_challenge"], key=lambda each: int(each["doc_id"]))
    values = [float(value) for sample in samples for value, _ in sample["filtered_resps"]]
    return values, {name: float(results["results"]["arc_challenge"][f"{name},none"]) for name in METRICS}


def _report(done: int, total: int) -> None:
    if done == total or not done % 1_000:
        progress(f"{done} of {total} scored")


def main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    logging.disable(logging.WARNING)
    lines = read_lines(arguments.docs)
    shots, asked = lines[: arguments.examples], lines[arguments.examples :]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = "\n".join(lines)
        base = build_tiny_model(
            folder / "base",
            text=text,
            vocab_size=8_000,
            context_tokens=CONTEXT_TOKENS,
            initializer_range=0.05,
        )
        for file, some in (("asked.jsonl", asked), ("examples.jsonl", shots)):
            (folder / file).write_text("\n".join(some) + "\n", encoding="utf-8")
        results = {
            f"arc_challenge_{number}": compare(
                base, folder / "asked.jsonl", folder / "examples.jsonl", number
            )
            for number in arguments.fewshot
        }
    settings = vars(arguments) | {"docs": arguments.docs.name, "rows": len(asked), "tolerance": TOLERANCE}
    write("gate-equality", results, packages=("lm_eval", "torch", "transformers"), settings=settings)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("docs", type=Path, help="rows of ARC-Challenge, JSON lines")
    parser.add_argument("--fewshot", nargs="+", type=int, default=[0, 5])
    parser.add_argument("--examples", type=int, default=22, help="rows that examples are drawn from")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main(options())
