"""Multiple choice as lm-eval defines it: its prompts, its few-shot examples and its metrics, on rows of our own.

What a task asks the model is scored by `likelihood`; lm-eval's own models and loaders are not used, and nothing is
looked up anywhere else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import lm_eval
from datasets import Dataset
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from schemas.evaluation import BenchmarkKind
from services.evaluator.scoring.likelihood import Likelihood, Question
from services.evaluator.scoring.order import Failure, ItemScore, ScoringRefused
from services.evaluator.scoring.rows import ChoiceRow, PublishedRow
from services.evaluator.scoring.scorer import Scorer

AskedRow = ChoiceRow | PublishedRow
TASKS = Path(lm_eval.__file__).parent / "tasks"
DEFINITIONS = {
    BenchmarkKind.ARC_CHALLENGE: "arc/arc_challenge.yaml",
    BenchmarkKind.HELLASWAG: "hellaswag/hellaswag.yaml",
    BenchmarkKind.MMLU: "mmlu/default/mmlu_{subject}.yaml",
    BenchmarkKind.TRUTHFULQA_MC1: "truthfulqa/truthfulqa_mc1.yaml",
    BenchmarkKind.TRUTHFULQA_MC2: "truthfulqa/truthfulqa_mc2.yaml",
}
NORMALISED = frozenset({BenchmarkKind.ARC_CHALLENGE, BenchmarkKind.HELLASWAG})
"""Tasks whose published numbers are `acc_norm`: likelihood per character of the ending."""
FEWSHOT_SEED = 1234
"""Seed that lm-eval takes where nobody names another, so that numbers are those of its command line."""
OWN_TASK = {
    "task": "registered_choices",
    "output_type": "multiple_choice",
    "test_split": "test",
    "fewshot_split": "test",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "metric_list": [
        {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")
    ],
}
OWN_EXAMPLES = {"fewshot_split": "examples", "fewshot_config": {"sampler": "first_n"}}
"""Settings of a suite with a file of examples: the first rows, the same for every question, are computed once."""


@dataclass(frozen=True)
class Asked:
    """A row as its task asks it."""

    row: AskedRow
    task: Any
    doc: Any
    """Row after the task's own preparation."""
    question: Question


def ask_choices(
    scorer: Scorer,
    kind: BenchmarkKind,
    rows: Sequence[AskedRow],
    *,
    num_fewshot: int,
    examples: Sequence[AskedRow] = (),
) -> list[Asked]:
    """Return each row with all its choices, in order. Raises ScoringRefused where a prompt leaves them no room."""
    asked: dict[str, Asked] = {}
    for subject, some in _by_subject(kind, rows):
        shots = [row for row in examples if row.subject == subject]
        task = make_task(kind, subject, some, shots, num_fewshot=num_fewshot)
        task.build_all_requests()
        requests = groupby(task.instances, key=lambda request: request.doc_id)
        per_row = [[request.args for request in group] for _, group in requests]
        for row, doc, question in zip(some, task.eval_docs, _questions(scorer, some, per_row), strict=True):
            asked[row.key] = Asked(row, task, doc, question)
    return [asked[row.key] for row in rows]


def choice_item(kind: BenchmarkKind, asked: Asked, endings: Sequence[Likelihood]) -> ItemScore:
    """Score a row. `hits` is the task's metric: for `truthfulqa_mc2` a share, else 1 for the right choice."""
    results = [(-ending.nats, ending.hits == ending.tokens) for ending in endings]
    metrics = asked.task.process_results(asked.doc, results)
    scores = [score for score, _ in results]
    best = asked.task.doc_to_choice(asked.doc)[scores.index(max(scores))]
    numbers = {"hits": metrics["acc_norm" if kind in NORMALISED else "acc"], "accuracy": metrics["acc"]}
    if "acc_norm" in metrics:
        numbers["normalised_accuracy"] = metrics["acc_norm"]
    return ItemScore(
        key=asked.row.key, answer=best, numbers={name: float(value) for name, value in numbers.items()}
    )


def _by_subject(kind: BenchmarkKind, rows: Sequence[AskedRow]) -> Iterator[tuple[str, list[AskedRow]]]:
    """Yield the rows of each task: MMLU is a task for each subject; of the other tasks there is one."""
    if kind is not BenchmarkKind.MMLU:
        yield "", list(rows)
        return
    ordered = sorted(rows, key=lambda row: row.subject)
    for subject, some in groupby(ordered, key=lambda row: row.subject):
        yield subject, list(some)


def make_task(
    kind: BenchmarkKind,
    subject: str,
    rows: Sequence[AskedRow],
    examples: Sequence[AskedRow],
    *,
    num_fewshot: int,
) -> Any:
    """Return lm-eval's task with these rows in the place of its data set."""
    config = _definition(kind, subject, has_examples=bool(examples))
    splits = {config.get("test_split") or config["validation_split"]: [row.doc for row in rows]}
    # The split that the task asks of is given; of the others only the one that it takes examples from.
    config |= {} if config.get("test_split") is None else {"validation_split": None}
    if examples:
        splits[config.get("fewshot_split") or config["training_split"]] = [row.doc for row in examples]
    elif kind in DEFINITIONS:
        config |= {"training_split": None, "fewshot_split": None}
    data = {name: Dataset.from_list(docs) for name, docs in splits.items()}
    local = {"dataset_path": "", "dataset_name": None, "custom_dataset": lambda **_: data}
    task = ConfigurableTask(config=config | local | {"num_fewshot": num_fewshot, "metadata": None})
    task.set_fewshot_seed(seed=FEWSHOT_SEED)
    return task


def _definition(kind: BenchmarkKind, subject: str, *, has_examples: bool) -> dict[str, Any]:
    if kind in DEFINITIONS:
        return dict(load_yaml(TASKS / DEFINITIONS[kind].format(subject=subject)))
    return OWN_TASK | (OWN_EXAMPLES if has_examples else {})


def _questions(
    scorer: Scorer, rows: Sequence[AskedRow], per_row: Sequence[Sequence[tuple[str, str]]]
) -> Iterator[Question]:
    encoded = iter(encode_pairs(scorer, [pair for pairs in per_row for pair in pairs]))
    for row, pairs in zip(rows, per_row, strict=True):
        tokens = [next(encoded) for _ in pairs]
        question = Question(tokens[0][0], tuple(ending for _, ending in tokens))
        if not all(question.endings):
            message = f"{row.key}: a choice has no token of its own after its question"
            raise ScoringRefused(Failure(code="malformed_rows", message=message))
        # The last token predicts nothing, so that it needs no room. lm-eval would cut the prompt's beginning off.
        if question.longest - 1 > scorer.max_tokens:
            length = f"{question.longest - 1} tokens with its examples, expected at most {scorer.max_tokens}"
            raise ScoringRefused(Failure(code="too_long", message=f"{row.key}: {length}"))
        yield question


def encode_pairs(scorer: Scorer, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
    """Return tokens of (context, ending) as lm-eval has them: both at once, cut behind the context's own tokens."""
    moved = [_space_moved(*pair) for pair in pairs]
    contexts = list(dict.fromkeys(context for context, _ in moved))
    ids = dict(zip(contexts, _encode(scorer.tokenizer, contexts), strict=True))
    whole = _encode(scorer.tokenizer, [context + ending for context, ending in moved])
    return [
        (ids[context], tokens[len(ids[context]) :]) for (context, _), tokens in zip(moved, whole, strict=True)
    ]


def _space_moved(context: str, ending: str) -> tuple[str, str]:
    """Move the space at a context's end to the ending, whose first word it belongs to."""
    stripped = context.rstrip()
    return stripped, context[len(stripped) :] + ending


def _encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts with special tokens, but for a text that begins with one already."""
    start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    beginning = tokenizer.decode(start) if start is not None else None
    tokens: dict[int, list[int]] = {}
    for has_beginning in (True, False):
        some = [
            n
            for n, text in enumerate(texts)
            if (beginning is not None and text.startswith(beginning)) is has_beginning
        ]
        if some:
            ids = tokenizer([texts[n] for n in some], add_special_tokens=not has_beginning, verbose=False)
            tokens |= dict(zip(some, ids["input_ids"], strict=True))
    return [tokens[n] for n in range(len(texts))]
