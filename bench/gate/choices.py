"""How fast multiple choice is scored: the gate's scoring and lm-eval's own `hf` model, in turns, on the same rows.

Each side starts at a file of rows and one of examples and ends at a written file of results: it reads, makes
prompts, tokenises, scores, and works out the metrics. Libraries and the model, a random Llama with an adapter in
float32, are loaded before. Other rows in every round. The peer is tried at each batch size on a few rows, which is a
warm-up of both sides too; the fastest size runs in the rounds. In each round every log-likelihood is compared (1e-3
absolute, and 1e-5 relative) and the mean of the task's metric.

    python -m bench.gate.choices [--docs arc-challenge-test.jsonl.gz] [--questions 100] [--rounds 5] [--adapters 8]

`--adapters`: so many jobs one after another, with an adapter each and a base model whose scores are known. Ours is
all that a scoring process does but for imports; the peer loads base model and adapter, and scores.
"""

import argparse
import hashlib
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lm_eval import evaluate
from lm_eval.models.huggingface import HFLM

from bench.gate.local_rows import SUBJECT, TASKS, read_docs, write_part
from bench.report import progress, summary, write
from services.evaluator.scoring.harness import NORMALISED, make_task
from services.evaluator.scoring.likelihood import likelihoods
from services.evaluator.scoring.models import Models
from services.evaluator.scoring.order import BenchmarkPart, Candidate, ItemScore, Side, WorkOrder
from services.evaluator.scoring.parts import prepare, read_rows
from services.evaluator.scoring.run import run
from tests.tiny_model import build_tiny_model, template_text

ABSOLUTE, RELATIVE = 1e-3, 1e-5
TRIAL_QUESTIONS = 12
CONTEXT_TOKENS = 2_048
RANK = 16


@dataclass(frozen=True)
class Numbers:
    metric: float
    """Mean of `acc_norm` where the task publishes that, else of `acc`."""
    log_likelihoods: list[float]
    """Empty where a side does not show them."""


SideOf = Callable[[BenchmarkPart], Numbers]


class Peer(HFLM):  # type: ignore[misc]
    """lm-eval's own model, which keeps what it returned."""

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
        self.returned = super().loglikelihood(requests, disable_tqdm=True)
        return self.returned


class Bench:
    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.folder = folder
        self.arguments = arguments
        self.docs = read_docs(arguments.docs, seed=arguments.seed)
        self.base = build_tiny_model(
            folder / "base",
            text="\n".join(" ".join([doc["question"], *doc["choices"]]) for doc in self.docs),
            vocab_size=arguments.vocabulary,
            hidden_size=arguments.hidden,
            num_layers=arguments.layers,
            context_tokens=CONTEXT_TOKENS,
            seed=arguments.seed,
            initializer_range=0.05,
        )
        self.models = Models(self.order(self.adapter(0)))
        self.model = self.models.scorer.model
        self.forwarded = 0
        self.model.get_base_model().register_forward_pre_hook(self._count, with_kwargs=True)

    def settings(self) -> dict[str, Any]:
        head = self.arguments.vocabulary * self.arguments.hidden
        weights = sum(weight.numel() for weight in self.model.get_base_model().parameters())
        examples = {name: TASKS[name].num_fewshot for name in self.arguments.tasks}
        docs = self.arguments.docs
        shown = {
            "docs": docs.name if docs else "made of the seed",
            "docs_sha256": hashlib.sha256(json.dumps(self.docs).encode()).hexdigest(),
            "weights_of_the_head": head,
            "weights_of_the_layers": weights - 2 * head,
            "examples": examples,
        }
        return vars(self.arguments) | shown

    def order(self, adapter: Path, *parts: BenchmarkPart) -> WorkOrder:
        return WorkOrder(
            base_path=str(self.base),
            template_sha256=hashlib.sha256(template_text(self.base).encode()).hexdigest(),
            candidate=Candidate(kind="adapter", path=str(adapter), rank=RANK),
            parts=parts,
        )

    def adapter(self, number: int) -> Path:
        """Of random matrices."""
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        torch.manual_seed(number)
        config = LoraConfig(
            r=RANK, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
        )
        path = self.folder / f"adapter-{number}"
        get_peft_model(AutoModelForCausalLM.from_pretrained(self.base), config).save_pretrained(path)
        (path / "README.md").unlink(missing_ok=True)
        return path

    def part(self, name: str, number: int, num_questions: int) -> BenchmarkPart:
        """Examples are the last docs; the rows of a round come behind those of the round before."""
        size, task = self.arguments.questions, TASKS[name]
        start = number * size
        asked, examples = self.docs[start : start + num_questions], self.docs[-4 * max(1, task.num_fewshot) :]
        assert start + num_questions <= len(self.docs) - len(examples), f"{len(self.docs)} rows are too few"
        return write_part(self.folder, f"{name}-{number}", task, asked, examples)

    def rounds(self, name: str) -> dict[str, Any]:
        sides: dict[str, SideOf] = {"retune": self.ours, **self._peers()}
        trial = self.part(name, 0, min(TRIAL_QUESTIONS, self.arguments.questions))
        seconds = {side: self._timed(score, trial)[0] for side, score in sides.items()}
        best = min(sorted(sides.keys() - {"retune"}), key=lambda side: seconds[side])
        progress(f"{name} trial: " + ", ".join(f"{side} {spent:.1f} s" for side, spent in seconds.items()))
        rounds = [self._round(name, number, sides, best) for number in range(self.arguments.rounds)]
        rates = {side: [each[side]["rate"] for each in rounds] for side in ("retune", best)}
        tokens = {side: sum(each[side]["tokens"] for each in rounds) for side in ("retune", best)}
        return {
            "trial_seconds": seconds,
            **{
                side: {"questions_per_second": summary(values), "tokens": tokens[side]}
                for side, values in rates.items()
            },
            "times_fewer_tokens": tokens[best] / tokens["retune"],
            "times_faster": summary(
                [mine / other for mine, other in zip(rates["retune"], rates[best], strict=True)]
            ),
        }

    def _round(self, name: str, number: int, sides: dict[str, SideOf], best: str) -> dict[str, Any]:
        part = self.part(name, number, self.arguments.questions)
        measured, numbers = {}, {}
        for side in ("retune", best):
            before = self.forwarded
            seconds, numbers[side] = self._timed(sides[side], part)
            measured[side] = {"rate": self.arguments.questions / seconds, "tokens": self.forwarded - before}
        check(numbers["retune"], numbers[best], part.name)
        rates = ", ".join(f"{side} {values['rate']:.2f} questions/s" for side, values in measured.items())
        progress(f"{name} {number + 1}/{self.arguments.rounds}: {rates}")
        return measured

    def _timed(self, score: SideOf, part: BenchmarkPart) -> tuple[float, Numbers]:
        began = time.monotonic()
        numbers = score(part)
        return time.monotonic() - began, numbers

    def ours(self, part: BenchmarkPart) -> Numbers:
        with self.models.on(Side.CANDIDATE) as scorer:
            prepared = prepare(scorer, part, read_rows(part))
            scored = likelihoods(scorer, prepared.questions, lambda _done, _total: None)
        items = prepared.items(scored, [])
        self._keep(part.name, [item.model_dump() for item in items])
        return Numbers(mean(items), [-ending.nats for endings in scored for ending in endings])

    def _peers(self) -> dict[str, SideOf]:
        shared = {"pretrained": self.model, "tokenizer": self.models.scorer.tokenizer, "device": "cpu"}
        sizes = {
            size: Peer(batch_size=size, max_length=CONTEXT_TOKENS, **shared)
            for size in self.arguments.batches
        }
        return {f"lm-eval-hf-{size}": partial(self.theirs, lm) for size, lm in sizes.items()}

    def theirs(self, lm: Peer, part: BenchmarkPart) -> Numbers:
        subject = SUBJECT if part.kind == "mmlu" else ""
        asked, examples = local_rows(part.path), local_rows(part.examples_path)
        task = make_task(part.kind, subject, asked, examples, num_fewshot=part.num_fewshot)
        name = task.config.task
        results = evaluate(lm, {name: task}, bootstrap_iters=0, log_samples=False)["results"][name]
        self._keep(f"{part.name}-peer", results)
        metric = results["acc_norm,none" if part.kind in NORMALISED else "acc,none"]
        return Numbers(float(metric), [value for value, _ in lm.returned])

    def adapters(self, name: str) -> dict[str, Any]:
        """Seconds of both sides for each adapter in turn, and how many times fewer all of ours take."""
        seconds: dict[str, list[float]] = {"retune": [], "lm-eval-hf": []}
        for number in range(self.arguments.adapters):
            adapter, part = self.adapter(number), self.part(name, 0, self.arguments.questions)
            mine, ours = self._timed(partial(self._our_job, adapter), part)
            other, theirs = self._timed(partial(self._their_job, adapter), part)
            check(ours, theirs, f"adapter {number}")
            seconds["retune"].append(mine)
            seconds["lm-eval-hf"].append(other)
            progress(
                f"adapter {number + 1}/{self.arguments.adapters}: retune {mine:.1f} s, lm-eval {other:.1f} s"
            )
        total = {side: sum(values) for side, values in seconds.items()}
        return {
            "task": name,
            "seconds_a_job": {side: summary(values) for side, values in seconds.items()},
            "times_faster_together": total["lm-eval-hf"] / total["retune"],
        }

    def _our_job(self, adapter: Path, part: BenchmarkPart) -> Numbers:
        with tempfile.TemporaryDirectory() as work_dir:
            scores = run(self.order(adapter, part), Path(work_dir), lambda _report: None)
        assert scores.failure is None, scores.failure
        return Numbers(mean(scores.parts[0].items), [])

    def _their_job(self, adapter: Path, part: BenchmarkPart) -> Numbers:
        model = {"pretrained": str(self.base), "peft": str(adapter), "dtype": "float32", "device": "cpu"}
        size = self.arguments.adapters_batch
        return self.theirs(Peer(batch_size=size, max_length=CONTEXT_TOKENS, **model), part)

    def _keep(self, name: str, results: Any) -> None:
        (self.folder / f"{name}.json").write_text(json.dumps(results, default=str))

    def _count(self, _model: Any, _given: Any, inputs: dict[str, Any]) -> None:
        self.forwarded += inputs["input_ids"].numel()


def mean(items: Any) -> float:
    scored: list[ItemScore] = list(items)
    return statistics.fmean(item.numbers["hits"] for item in scored)


def local_rows(path: str | None) -> list[Any]:
    """As `make_task` takes them: documents with a subject."""
    if path is None:
        return []
    with Path(path).open(encoding="utf-8") as file:
        return [SimpleNamespace(doc=json.loads(line)) for line in file]


def check(ours: Numbers, theirs: Numbers, name: str) -> None:
    assert abs(ours.metric - theirs.metric) < 1e-6, (
        f"{name}: metric {ours.metric}, by lm-eval {theirs.metric}"
    )
    if not ours.log_likelihoods:
        return
    pairs = list(zip(ours.log_likelihoods, theirs.log_likelihoods, strict=True))
    assert pairs, name
    for mine, other in pairs:
        difference = abs(mine - other)
        assert difference < ABSOLUTE, f"{name}: {mine} and {other}"
        assert difference <= RELATIVE * abs(other), f"{name}: {mine} and {other}"


def main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments)
        results = {name: bench.rounds(name) for name in arguments.tasks}
        if arguments.adapters:
            results["adapters"] = bench.adapters("fixed_examples")
        write(
            "gate-choices",
            results,
            packages=("lm_eval", "torch", "transformers", "peft"),
            settings=bench.settings(),
        )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", type=Path, help="rows as ARC's; without it they are made up")
    parser.add_argument("--questions", type=int, default=100, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--batches", nargs="+", default=[1, 8, 16], type=int, help="of the peer")
    parser.add_argument("--adapters", type=int, default=0)
    parser.add_argument("--adapters-batch", type=int, default=8, help="of the peer, with adapters")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=12)
    return parser.parse_args()


if __name__ == "__main__":
    main(options())
