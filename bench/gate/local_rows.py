"""Rows of multiple choice in the shapes of several tasks, made from a local file of ARC's shape or from a seed."""

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.evaluation import BenchmarkKind
from services.evaluator.scoring.order import BenchmarkPart, Side

NUM_MADE_DOCS = 1_200
SUBJECT = "anatomy"
NUM_WORDS = 2_000
LETTERS = "aeioubcdfghklmnprstvw"

Doc = dict[str, Any]
"""{question, choices: [text, text, text, text], answer}"""


@dataclass(frozen=True)
class Task:
    kind: BenchmarkKind
    num_fewshot: int = 0


TASKS = {
    # The recipe's own: rows of one's own, with the same examples in front of each.
    "fixed_examples": Task(BenchmarkKind.MULTIPLE_CHOICE, 12),
    "truthfulqa_mc2": Task(BenchmarkKind.TRUTHFULQA_MC2),
    "mmlu": Task(BenchmarkKind.MMLU, 5),
    "arc_challenge": Task(BenchmarkKind.ARC_CHALLENGE),
    "arc_challenge_8": Task(BenchmarkKind.ARC_CHALLENGE, 8),
}


def read_docs(path: Path | None, *, seed: int) -> list[Doc]:
    """Those with four choices, in an order drawn by the seed; without a file made-up ones."""
    docs = list(_made(seed)) if path is None else [_of_arc(json.loads(line)) for line in read_lines(path)]
    docs = [doc for doc in docs if len(doc["choices"]) == 4]
    random.Random(seed).shuffle(docs)
    return docs


def write_part(
    folder: Path, name: str, task: Task, asked: Sequence[Doc], examples: Sequence[Doc]
) -> BenchmarkPart:
    """Both files, and the order to score them."""
    paths = [folder / f"{name}-{which}.jsonl" for which in ("asked", "examples")]
    for path, docs in zip(paths, (asked, examples), strict=True):
        path.write_text(
            "".join(json.dumps(row_of(task.kind, doc), ensure_ascii=False) + "\n" for doc in docs)
        )
    return BenchmarkPart(
        name=name,
        path=str(paths[0]),
        sides=(Side.CANDIDATE,),
        kind=task.kind,
        num_fewshot=task.num_fewshot,
        examples_path=str(paths[1]) if task.num_fewshot else None,
    )


def row_of(kind: BenchmarkKind, doc: Doc) -> dict[str, Any]:
    question, choices, answer = doc["question"], doc["choices"], doc["answer"]
    if kind is BenchmarkKind.ARC_CHALLENGE:
        labels = list("ABCD")
        return {
            "question": question,
            "choices": {"text": choices, "label": labels},
            "answerKey": labels[answer],
        }
    if kind is BenchmarkKind.TRUTHFULQA_MC2:
        is_true = [int(number == answer) for number in range(len(choices))]
        return {"question": question, "mc2_targets": {"choices": choices, "labels": is_true}}
    return doc | ({"subject": SUBJECT} if kind is BenchmarkKind.MMLU else {})


def read_lines(path: Path) -> list[str]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def _of_arc(row: dict[str, Any]) -> Doc:
    answer = row["choices"]["label"].index(row["answerKey"])
    return {"question": row["question"], "choices": row["choices"]["text"], "answer": answer}


def _made(seed: int) -> Iterator[Doc]:
    """About as long as ARC's."""
    chance = random.Random(seed)
    words = ["".join(chance.choices(LETTERS, k=chance.randint(2, 9))) for _ in range(NUM_WORDS)]

    def phrase(low: int, high: int) -> str:
        return " ".join(chance.choices(words, k=chance.randint(low, high)))

    for _ in range(NUM_MADE_DOCS):
        choices = [phrase(1, 9) for _ in range(4)]
        yield {"question": f"{phrase(8, 36)}?", "choices": choices, "answer": chance.randrange(4)}
