"""How good an answer is beside its reference, from 0 to 1, for each metric that compares text."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import regex

from schemas.gate import HoldoutMetric
from services.evaluator.scoring.order import Failure, ScoringRefused

Metric = Callable[[str, str], float]
"""Function of answer and reference that returns a number from 0 to 1."""

PATTERN_SECONDS = 1.0
"""Limit of one search in seconds; a pattern that takes longer goes back over the text again and again."""
MAX_ANSWER_CHARS = 100_000
STRAIGHT_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})
_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL | re.IGNORECASE)


def metric_named(name: HoldoutMetric, pattern: str | None) -> Metric:
    """Return the metric as a function. Perplexity is none: it needs no answer."""
    if name == "regex":
        assert pattern is not None, "the rule checks that a pattern is there"
        return partial(extracted_match, pattern)
    plain: dict[str, Metric] = {
        "exact_match": exact_match,
        "contains": contains,
        "token_f1": token_f1,
        "json_equal": json_equal,
        "rouge_l": rouge_l,
        "bleu": bleu,
    }
    return plain[name]


def normalise(text: str) -> str:
    """Return what is compared: NFKC, any case, straight quotes, one space between words, no full stop at the end.

    Nothing but punctuation stays as it is.
    """
    plain = " ".join(unicodedata.normalize("NFKC", text).translate(STRAIGHT_QUOTES).casefold().split())
    return plain.rstrip(".!? ") or plain


def exact_match(answer: str, reference: str) -> float:
    return float(normalise(answer) == normalise(reference))


def contains(answer: str, reference: str) -> float:
    """Return 1 where the answer has the words of the reference as whole words: `no` is not in `know`."""
    escaped_reference = re.escape(normalise(reference))
    return float(re.search(rf"(?<!\w){escaped_reference}(?!\w)", normalise(answer)) is not None)


def extracted_match(pattern: str, answer: str, reference: str) -> float:
    """Return 1 where the pattern matches the same text. A reference that it does not match is compared as it is; an
    answer that it does not match is wrong.

    Raises ScoringRefused for a pattern that does not come to an end in time.
    """
    match = _last_match(pattern, answer)
    reference_match = _last_match(pattern, reference)
    return float(
        match is not None
        and normalise(match) == normalise(reference if reference_match is None else reference_match)
    )


def token_f1(answer: str, reference: str) -> float:
    answer_words, reference_words = (
        Counter(re.findall(r"\w+", normalise(text))) for text in (answer, reference)
    )
    if not answer_words or not reference_words:
        return exact_match(answer, reference)
    shared = (answer_words & reference_words).total()
    return 2.0 * shared / (answer_words.total() + reference_words.total())


def json_equal(answer: str, reference: str) -> float:
    """Return 1 for equal JSON, without a fence of backquotes; the order of keys and 1 or 1.0 make no difference."""
    try:
        return float(_value(answer) == _value(reference))
    except (ValueError, RecursionError):
        return 0.0


def rouge_l(answer: str, reference: str) -> float:
    return float(_rouge().score(reference, answer)["rougeL"].fmeasure)


def bleu(answer: str, reference: str) -> float:
    """Return sentence BLEU with exponential smoothing and effective order, by sacrebleu's own tokenizer `13a`."""
    return float(_bleu().sentence_score(answer, [reference]).score / 100.0)


def _last_match(pattern: str, text: str) -> str | None:
    try:
        matches = list(regex.finditer(pattern, text[:MAX_ANSWER_CHARS], timeout=PATTERN_SECONDS))
    except TimeoutError as error:
        duration = f"pattern {pattern!r} took over {PATTERN_SECONDS} s on one answer"
        message = f"{duration}, expected one without nested repeats"
        raise ScoringRefused(Failure(code="slow_pattern", message=message)) from error
    if not matches:
        return None
    match = matches[-1]
    return str(match[1] if match.re.groups and match[1] is not None else match[0])


def _value(text: str) -> Any:
    """Read JSON with booleans distinguished from numbers, which Python holds to be equal."""
    fenced = _FENCE.match(text)
    return _distinct(json.loads(fenced[1] if fenced else text))


def _distinct(value: Any) -> Any:
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return [_distinct(item) for item in value]
    if isinstance(value, dict):
        return {key: _distinct(item) for key, item in value.items()}
    return value


class _Words:
    """The library's own way to find words, which knows the letters a to z alone, for every script."""

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"[^\W_]+", text.lower())


@cache
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], tokenizer=_Words())


@cache
def _bleu() -> Any:
    from sacrebleu.metrics import BLEU

    return BLEU(smooth_method="exp", effective_order=True)
