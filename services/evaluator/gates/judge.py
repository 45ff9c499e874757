"""Check 5: a judge model prefers the candidate's answers, asked in both orders. Never the only evidence."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from schemas.evaluation import CheckResult, Criterion, Interval, Outcome
from schemas.gate import JudgeRule
from services.evaluator.gates.checks import decided, in_words, inconclusive
from services.evaluator.gates.intervals import paired_interval
from services.evaluator.gates.sameness import constant_answer_criterion
from services.evaluator.gates.series import Estimate, reaches, share_of
from services.evaluator.gates.sizes import MIN_CONSISTENT_PAIRS, items_for

MIN_CONTROL_PAIRS = 4
MIN_CONTROL_PAIR_SHARE = 0.8
WIN_RATE_TOLERANCE = 0.05
"""How far below the asked win rate the interval may reach: a candidate that is as good must be able to pass."""


class Preference(StrEnum):
    CANDIDATE = "candidate"
    BASE = "base"
    TIE = "tie"


@dataclass(frozen=True)
class Pair:
    """One prompt judged twice, the candidate shown first and then second. None: no usable answer."""

    key: str
    shown_first: Preference | None
    shown_second: Preference | None
    candidate_answer: str
    base_answer: str
    reference: str

    @property
    def is_answered(self) -> bool:
        return self.shown_first is not None and self.shown_second is not None

    @property
    def verdict(self) -> Preference | None:
        """Preference that both orders agree on; None where they do not."""
        return self.shown_first if self.shown_first is self.shown_second else None


@dataclass(frozen=True)
class ControlPair:
    """A pair whose better answer is known. `recognised`: whether both orders named it; None: no usable answer."""

    key: str
    recognised: bool | None


def gate_judge(
    rule: JudgeRule, pairs: Sequence[Pair], control_pairs: Sequence[ControlPair], *, expected: int
) -> CheckResult:
    gaps = list(_find_gaps(pairs, control_pairs, expected))
    if not pairs:
        return inconclusive("judge", "; ".join(gaps))
    agreed = [pair for pair in pairs if pair.verdict]
    trust = [_consistency(rule, pairs), *([_control_pair_criterion(control_pairs)] if control_pairs else [])]
    gaps += [
        f"the judge is not reliable: {in_words(criterion)}" for criterion in trust if not criterion.passed
    ]
    shown = [_win_rate(rule, agreed), _ties(agreed), _length_bias(agreed)] if agreed else []
    return decided("judge", [*trust, *shown, _sameness(pairs)], gaps)


def _find_gaps(pairs: Sequence[Pair], control_pairs: Sequence[ControlPair], expected: int) -> Iterable[str]:
    consistent = sum(pair.verdict is not None for pair in pairs)
    if consistent < MIN_CONSISTENT_PAIRS:
        yield f"{consistent} pairs judged alike in both orders, expected at least {MIN_CONSISTENT_PAIRS}"
    answered = sum(pair.is_answered for pair in pairs)
    if answered != expected or len(pairs) != expected:
        yield f"{answered} of {expected} pairs answered in both orders"
    if len(control_pairs) < MIN_CONTROL_PAIRS or any(
        control_pair.recognised is None for control_pair in control_pairs
    ):
        known = sum(control_pair.recognised is not None for control_pair in control_pairs)
        yield f"{known} of {max(len(control_pairs), MIN_CONTROL_PAIRS)} canary pairs answered"


def _consistency(rule: JudgeRule, pairs: Sequence[Pair]) -> Criterion:
    share = _share(pair.verdict is not None for pair in pairs)
    return _at_least("consistency", "consistent_share", share, rule.min_consistent_share, len(pairs))


def _win_rate(rule: JudgeRule, agreed: Sequence[Pair]) -> Criterion:
    """Return the criterion on the win rate. A tie is half a win. The whole interval decides, not the rate alone."""
    counts = Counter(pair.verdict for pair in agreed)
    wins, losses = counts[Preference.CANDIDATE], counts[Preference.BASE]
    lead = paired_interval(wins, losses, len(agreed))
    interval = Interval(low=0.5 + lead.low / 2.0, high=0.5 + lead.high / 2.0)
    win_rate = Estimate(0.5 + (wins - losses) / (2.0 * len(agreed)), interval)
    threshold = rule.min_win_rate - WIN_RATE_TOLERANCE
    outcome: Outcome = "failed" if win_rate.interval.high < threshold else "inconclusive"
    if win_rate.interval.low > threshold:
        outcome = "passed"
    half_width = (win_rate.interval.high - win_rate.interval.low) / 2.0
    needed = items_for(len(agreed), distance=abs(win_rate.value - threshold), half_width=half_width)
    return Criterion(
        name="preference",
        metric="win_rate",
        value=win_rate.value,
        baseline=None,
        threshold=threshold,
        count=len(agreed),
        interval=win_rate.interval,
        passed=outcome == "passed",
        outcome=outcome,
        needed=needed if outcome == "inconclusive" else None,
    )


def _ties(agreed: Sequence[Pair]) -> Criterion:
    """Return the share of pairs that both orders call equal; shown, never a reason."""
    share = _share(pair.verdict is Preference.TIE for pair in agreed)
    return _shown("ties", "tied_share", share, len(agreed))


def _control_pair_criterion(control_pairs: Sequence[ControlPair]) -> Criterion:
    share = _share(control_pair.recognised is True for control_pair in control_pairs)
    return _at_least("canaries", "recognised_share", share, MIN_CONTROL_PAIR_SHARE, len(control_pairs))


def _length_bias(agreed: Sequence[Pair]) -> Criterion:
    """Return the share of decided pairs of unequal length that the longer answer won; shown, never a reason."""
    decided = [
        pair
        for pair in agreed
        if pair.verdict is not Preference.TIE and len(pair.candidate_answer) != len(pair.base_answer)
    ]
    share = _share(map(_longer_won, decided)) if decided else None
    return _shown("length_bias", "longer_answer_won_share", share, len(decided), baseline=0.5)


def _longer_won(pair: Pair) -> bool:
    candidate_is_longer = len(pair.candidate_answer) > len(pair.base_answer)
    return candidate_is_longer == (pair.verdict is Preference.CANDIDATE)


def _shown(
    name: str, metric: str, share: Estimate | None, count: int, *, baseline: float | None = None
) -> Criterion:
    """Return a number that no rule asks for, as a criterion that passes."""
    return Criterion(
        name=name,
        metric=metric,
        value=share.value if share else 0.5,
        baseline=baseline,
        threshold=1.0,
        higher_is_better=False,
        count=count,
        interval=share.interval if share else None,
        passed=True,
        outcome="passed",
    )


def _sameness(pairs: Sequence[Pair]) -> Criterion:
    return constant_answer_criterion(
        (pair.candidate_answer for pair in pairs),
        base=(pair.base_answer for pair in pairs),
        references=(pair.reference for pair in pairs),
    )


def _share(facts: Iterable[bool]) -> Estimate:
    known = list(facts)
    return share_of(sum(known), len(known))


def _at_least(name: str, metric: str, share: Estimate, threshold: float, count: int) -> Criterion:
    is_reached = reaches(share.value, threshold)
    return Criterion(
        name=name,
        metric=metric,
        value=share.value,
        baseline=None,
        threshold=threshold,
        count=count,
        interval=share.interval,
        passed=is_reached,
        outcome="passed" if is_reached else "failed",
    )
