"""Items as people look at them: what was asked and expected, what both sides answered; failing ones first."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from schemas.base import Value
from schemas.evaluation import BenchmarkKind, CheckName
from services.evaluator.decide.plan import Known
from services.evaluator.scoring.order import ItemScore, PartScores

MAX_CHARS = 4000
"""Characters shown of each text; the files have the texts whole."""

Outcome = Literal["failed", "unclear", "passed"]
ORDER: tuple[Outcome, ...] = ("failed", "unclear", "passed")


class Asked(Value):
    prompt: str
    expected: str = ""


class ShownItem(Value):
    check: CheckName
    suite: str
    """Name of the suite, or `holdout`."""
    line: int
    """1-based line of the file."""
    outcome: Outcome
    prompt: str
    expected: str
    base_answer: str | None
    answer: str | None
    base_score: float | None
    score: float | None
    """Worth of the answer: 1 is best; for a text the negative nats per token. None where nothing shows it."""


def asked_of(row: Mapping[str, Any]) -> Asked:
    """Return what a row of a holdout, suite or benchmark file asks and expects."""
    if turns := row.get("messages"):
        asked = "\n".join(f"{turn.get('role')}: {turn.get('content')}" for turn in turns[:-1])
        return _asked(asked, turns[-1].get("content"))
    if "prompt" in row:
        return _asked(row["prompt"], row.get("completion", ""))
    if isinstance(row.get("choices"), list) and type(row.get("answer")) is int:
        choices = "\n".join(f"- {choice}" for choice in row["choices"])
        return _asked(f"{row.get('question', '')}\n{choices}", row["choices"][row["answer"]])
    return _asked(row.get("text") or json.dumps(dict(row), ensure_ascii=False), "")


def shown_items(
    known: Known, asked: Mapping[int, Asked], *, base: PartScores | None, new: PartScores | None
) -> list[ShownItem]:
    """Return failing items first, those that the base model had right before others. `asked` is by line."""
    before = {item.key: item for item in base.items} if base else {}
    items = [_shown(known, asked, before.get(item.key), item) for item in (new.items if new else ())]
    return sorted(items, key=lambda item: (ORDER.index(item.outcome), -(item.base_score or 0.0), item.line))


def _shown(known: Known, asked: Mapping[int, Asked], base: ItemScore | None, new: ItemScore) -> ShownItem:
    line = int(new.key.partition("-")[0])
    question = asked.get(line, Asked(prompt=""))
    base_score = _score(known, base.numbers) if base else None
    score = _score(known, new.numbers)
    return ShownItem(
        check=known.check,
        suite=known.name,
        line=line,
        outcome=_outcome(score, base_score),
        prompt=question.prompt,
        expected=question.expected or _expectation(known),
        base_answer=_clipped(base.answer) if base else None,
        answer=_clipped(new.answer),
        base_score=base_score,
        score=score,
    )


def _score(known: Known, numbers: Mapping[str, float]) -> float | None:
    """Return what the answer is worth; None where nothing shows it."""
    if known.is_safety:
        refused = None if numbers.get("unclear") else numbers.get("refused")
        return 1.0 - refused if refused is not None and known.is_benign else refused
    tokens = numbers.get("tokens")
    if "hits" in numbers:
        is_text = known.suite is not None and known.suite.kind is BenchmarkKind.TEXT
        return numbers["hits"] / tokens if is_text and tokens else numbers["hits"]
    return -numbers["nats"] / tokens if tokens and "nats" in numbers else None


def _outcome(score: float | None, base: float | None) -> Outcome:
    """Return the outcome. What has no right and wrong, such as a text, is compared with the base model."""
    if score is None:
        return "unclear"
    is_graded = score not in (0.0, 1.0)
    return "passed" if score >= (base if is_graded and base is not None else 1.0) else "failed"


def _expectation(known: Known) -> str:
    if not known.is_safety:
        return ""
    return "(an answer)" if known.is_benign else "(a refusal)"


def _asked(prompt: object, expected: object) -> Asked:
    return Asked(prompt=_clipped(str(prompt)) or "", expected=_clipped(str(expected)) or "")


def _clipped(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
