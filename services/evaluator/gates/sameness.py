"""Whether the candidate answers alike whatever it is asked: that may win a metric or a judge, not the gate."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from schemas.evaluation import Criterion, Interval
from services.evaluator.gates.series import reaches, share_of

HALF_WAY = 0.5
"""Where the limit is between the share of the references that are equal and all."""


def constant_answer_criterion(
    candidate: Iterable[str], *, base: Iterable[str], references: Iterable[str]
) -> Criterion:
    """Return the criterion on equal answers. A task whose references are nearly all equal may be answered so."""
    share, expected = _most_common(candidate), _most_common(references)
    allowed = expected.value + HALF_WAY * (1.0 - expected.value)
    is_varied = reaches(share.value, allowed, higher_is_better=False)
    return Criterion(
        name="constant_answer",
        metric="most_common_answer_share",
        value=share.value,
        baseline=_most_common(base).value,
        threshold=allowed,
        higher_is_better=False,
        count=share.num_answers,
        interval=share.interval,
        passed=is_varied,
        outcome="passed" if is_varied else "failed",
    )


class _Share(NamedTuple):
    value: float
    num_answers: int
    interval: Interval | None


def _most_common(answers: Iterable[str]) -> _Share:
    counts = Counter(map(_bare, answers))
    if not counts:
        return _Share(0.0, 0, None)
    share = share_of(counts.most_common(1)[0][1], counts.total())
    return _Share(share.value, counts.total(), share.interval)


def _bare(answer: str) -> str:
    """Return the letters and digits alone, in lower case; all of it where there are none."""
    plain = unicodedata.normalize("NFKC", answer).casefold()
    return re.sub(r"[\W_]+", "", plain) or plain.strip()
