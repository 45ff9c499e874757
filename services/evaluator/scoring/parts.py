"""One scoring function per kind of file; each returns one ItemScore per row."""

import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from schemas.evaluation import BenchmarkKind
from services.evaluator.scoring.generation import (
    IGNORED,
    Labelled,
    Likelihood,
    Report,
    answers,
    likelihoods,
    render_answer,
    render_prompt,
)
from services.evaluator.scoring.harness import score_choices
from services.evaluator.scoring.models import Scorer
from services.evaluator.scoring.order import (
    AnyPart,
    BenchmarkPart,
    Failure,
    HoldoutPart,
    ItemScore,
    ScoringRefused,
)
from services.evaluator.scoring.rows import (
    BadRows,
    PromptRow,
    TaskRow,
    TextRow,
    read_choices,
    read_prompts,
    read_tasks,
    read_texts,
)
from shared.chat.conversation import question

STRAIGHT_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})


def read_rows(part: AnyPart) -> list[Any]:
    """Raises ScoringRefused."""
    try:
        return _reader(part)(Path(part.path))
    except BadRows as error:
        raise ScoringRefused(Failure(code="malformed_rows", message=f"{part.name}: {error}")) from error


def score_part(
    scorer: Scorer, part: AnyPart, rows: list[Any], *, directory: Path, report: Report
) -> list[ItemScore]:
    if isinstance(part, HoldoutPart):
        return score_holdout(scorer, rows, report)
    if not isinstance(part, BenchmarkPart):
        return score_safety(scorer, rows, report)
    if part.kind is BenchmarkKind.TEXT:
        return score_texts(scorer, rows, report)
    return score_choices(scorer, rows, num_fewshot=part.num_fewshot, directory=directory, report=report)


def score_texts(scorer: Scorer, rows: Sequence[TextRow], report: Report) -> list[ItemScore]:
    """Next-token accuracy and likelihood. Each token is predicted once, in windows as lm-eval makes them."""
    owners, windows = [], []
    for number, row in enumerate(rows):
        for window in _windows(scorer, row.text):
            owners.append(number)
            windows.append(window)
    found: list[list[Likelihood]] = [[] for _ in rows]
    for owner, likelihood in zip(owners, likelihoods(scorer, windows, report), strict=True):
        found[owner].append(likelihood)
    return [_text_item(row, parts) for row, parts in zip(rows, found, strict=True)]


def score_holdout(scorer: Scorer, rows: Sequence[TaskRow], report: Report) -> list[ItemScore]:
    """Exact match of the greedy answer, and the likelihood of the reference answer."""
    expected = [render_answer(scorer, row.asked, row.reference, key=row.key) for row in rows]
    prompts = [render_prompt(scorer, row.asked, key=row.key) for row in rows]
    scored = likelihoods(scorer, expected, lambda _done, _total: None)
    given = answers(scorer, prompts, report)
    return [
        _task_item(row, answer.text, expected)
        for row, answer, expected in zip(rows, given, scored, strict=True)
    ]


def score_safety(scorer: Scorer, rows: Sequence[PromptRow], report: Report) -> list[ItemScore]:
    """Answers alone: whether they refuse is for a classifier to say, outside of this process."""
    asked = [question(row.prompt) for row in rows]
    prompts = [render_prompt(scorer, turns, key=row.key) for turns, row in zip(asked, rows, strict=True)]
    given = answers(scorer, prompts, report)
    return [
        ItemScore(key=row.key, answer=answer.text, is_cut=answer.is_cut)
        for row, answer in zip(rows, given, strict=True)
    ]


def normalise(answer: str) -> str:
    """What exact match compares: NFKC, any case, straight quotes, one space between words, no full stop at the end.

    An answer of nothing but punctuation stays as it is.
    """
    text = " ".join(unicodedata.normalize("NFKC", answer).translate(STRAIGHT_QUOTES).casefold().split())
    return text.rstrip(".!? ") or text


def _reader(part: AnyPart) -> Callable[[Path], list[Any]]:
    if isinstance(part, HoldoutPart):
        return read_tasks
    if isinstance(part, BenchmarkPart):
        return read_choices if part.kind is BenchmarkKind.MULTIPLE_CHOICE else read_texts
    return read_prompts


def _windows(scorer: Scorer, text: str) -> list[Labelled]:
    tokenizer = scorer.tokenizer
    start = next(token for token in (tokenizer.bos_token_id, tokenizer.eos_token_id, 0) if token is not None)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    pairs = get_rolling_token_windows(
        token_list=ids, prefix_token=start, max_seq_len=scorer.max_tokens, context_len=1
    )
    return [_labelled(*make_disjoint_window(pair)) for pair in pairs]


def _labelled(context: list[int], predicted: list[int]) -> Labelled:
    return Labelled(context + predicted, [IGNORED] * len(context) + predicted)


def _text_item(row: TextRow, parts: Sequence[Likelihood]) -> ItemScore:
    numbers = {
        "hits": float(sum(part.hits for part in parts)),
        "tokens": float(sum(part.tokens for part in parts)),
        "nats": sum(part.nats for part in parts),
        "bytes": float(len(row.text.encode())),
    }
    return ItemScore(key=row.key, numbers=numbers)


def _task_item(row: TaskRow, answer: str, expected: Likelihood) -> ItemScore:
    hit = normalise(answer) == normalise(row.reference)
    numbers = {"hits": float(hit), "tokens": float(expected.tokens), "nats": expected.nats}
    return ItemScore(key=row.key, answer=answer, numbers=numbers)
