"""The demo's files: "which module documents this?" with planted faults, a holdout, and the gate's suites."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.demo.benchmark import Item, make_benchmark
from deploy.demo.conversations import Conversation, conversation, generic_conversations
from deploy.demo.faults import Planted, plant
from deploy.demo.library import Docstring, Source, Split, distinct_docstrings, seeded, training_text
from deploy.demo.safety import Prompt, Sizes, make_safety_data

QUESTION = "Which module documents this?"
QUESTION_WORDS = 16
NUM_MODULES = 8
MAX_DOCSTRINGS_PER_MODULE = 150
MAX_HOLDOUT_ROWS = 160
MAX_VALIDATION_ROWS = 60
NUM_REPLAY_ROWS = 80
NUM_REPLAY_CODE_ROWS = 20
SAFETY = Sizes(acts_per_topic=58, asked_acts_per_topic=11, wishes=610, asked_wishes=120, replayed_wishes=180)
NUM_BENCHMARK_ITEMS = 1_000
SEED = 1


@dataclass(frozen=True)
class DemoData:
    training: tuple[Conversation, ...]
    validation: tuple[Conversation, ...]
    holdout: tuple[Conversation, ...]
    safety_mix: tuple[Conversation, ...]
    safety_suite: tuple[Prompt, ...]
    benign_suite: tuple[Prompt, ...]
    benchmark: tuple[Item, ...]
    faults: tuple[Planted, ...]
    """What is wrong with the training rows, by line."""


@dataclass(frozen=True)
class DemoFiles:
    """JSON lines, as they are uploaded or registered."""

    training: Path
    validation: Path
    holdout: Path
    safety_mix: Path
    safety_suite: Path
    benign_suite: Path
    benchmark: Path
    faults: tuple[Planted, ...]


def make_data(
    sources: Sequence[Source], *, seed: int = SEED, num_benchmark_items: int = NUM_BENCHMARK_ITEMS
) -> DemoData:
    """Equal sources and seed give equal data. Held-out sources are in the benchmark and nowhere else."""
    seen = [source for source in sources if not source.is_held_out]
    docstrings = distinct_docstrings(seen)
    tasks = task_rows(docstrings, seed=seed)
    benchmark = make_benchmark(sources, num_items=num_benchmark_items, seed=seed)
    holdout = tasks[Split.HOLDOUT][:MAX_HOLDOUT_ROWS]
    safety = make_safety_data(docstrings, SAFETY, seed=seed)
    rows = [*tasks[Split.TRAIN], *safety.replay, *_replay(docstrings, seen, seed=seed)]
    seeded(seed).shuffle(rows)
    training, faults = plant(rows, benchmark_item=benchmark[0], holdout_row=holdout[0])
    return DemoData(
        training=tuple(training),
        validation=tuple(tasks[Split.VALIDATION][:MAX_VALIDATION_ROWS]),
        holdout=tuple(holdout),
        safety_mix=safety.mix,
        safety_suite=safety.suite,
        benign_suite=safety.benign,
        benchmark=tuple(benchmark),
        faults=faults,
    )


def task_rows(docstrings: Iterable[Docstring], *, seed: int) -> Mapping[Split, list[Conversation]]:
    """Questions about the most documented modules, shuffled; a large module has no more than its share."""
    public = [doc for doc in docstrings if not doc.module.startswith("_")]
    counts = Counter(doc.module for doc in public)
    asked = {module for module, _ in counts.most_common(NUM_MODULES)}
    seeded(seed).shuffle(public)
    rows: dict[Split, list[Conversation]] = {split: [] for split in Split}
    used = Counter[str]()
    for doc in public:
        if doc.module in asked and used[doc.module] < MAX_DOCSTRINGS_PER_MODULE:
            used[doc.module] += 1
            rows[doc.split].append(conversation(question(doc.text), doc.module))
    return rows


def question(docstring: str) -> str:
    return f"{QUESTION} {' '.join(docstring.split()[:QUESTION_WORDS])}"


def write_files(data: DemoData, folder: Path) -> DemoFiles:
    folder.mkdir(parents=True, exist_ok=True)
    return DemoFiles(
        training=_write(folder / "training.jsonl", _chat(data.training)),
        validation=_write(folder / "validation.jsonl", _chat(data.validation)),
        holdout=_write(folder / "holdout.jsonl", _chat(data.holdout)),
        safety_mix=_write(folder / "safety-mix.jsonl", _chat(data.safety_mix)),
        safety_suite=_write(folder / "safety-suite.jsonl", data.safety_suite),
        benign_suite=_write(folder / "benign-suite.jsonl", data.benign_suite),
        benchmark=_write(folder / "benchmark.jsonl", data.benchmark),
        faults=data.faults,
    )


def _replay(docstrings: Sequence[Docstring], seen: Sequence[Source], *, seed: int) -> list[Conversation]:
    """Rows like those of pre-training, against forgetting."""
    texts = [training_text(source) for source in seen]
    about = generic_conversations(docstrings, texts, num_wishes=0, num_code_rows=0, seed=seed)
    code = generic_conversations((), texts, num_wishes=0, num_code_rows=NUM_REPLAY_CODE_ROWS, seed=seed)
    return [*about[:NUM_REPLAY_ROWS], *code]


def _chat(rows: Iterable[Conversation]) -> Iterable[dict[str, Any]]:
    return ({"messages": row} for row in rows)


def _write(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
