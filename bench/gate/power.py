"""How often each check of the gate passes, fails or cannot tell, for models whose truth is known.

Answers are drawn item by item and decided by the gate's own functions; equal tables of answers are decided once.
`python -m bench.gate.power [DRAWS]` prints the table of `docs/gate.md`.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from schemas.evaluation import BenchmarkKind
from schemas.gate import BenchmarkRule, HoldoutRule, JudgeRule, OverRefusalRule, SafetyRule
from services.evaluator.gates.answers import Answer, Suite
from services.evaluator.gates.benchmark import Scored, gate_benchmarks
from services.evaluator.gates.holdout import gate_holdout
from services.evaluator.gates.judge import ControlPair, Pair, Preference, gate_judge
from services.evaluator.gates.over_refusal import gate_over_refusal
from services.evaluator.gates.refusal import AnswerClass
from services.evaluator.gates.safety import gate_safety
from services.evaluator.gates.series import Item, Series

OUTCOMES = ("passed", "inconclusive", "failed")
SEED = 20

Decide = Callable[[tuple[int, ...]], str]
"""The check's outcome for a table: how many items were drawn of each kind."""


@dataclass(frozen=True)
class Case:
    """A true model before one check. `shares` are of the kinds of items, in the order that `decide` takes them."""

    check: str
    truth: str
    count: int
    shares: tuple[float, ...]
    decide: Decide
    limits: Mapping[str, tuple[float, float]]
    """What the share of an outcome has to lie between."""

    @property
    def name(self) -> str:
        return f"{self.check}, {self.count} items: {self.truth}"

    def measure(self, draws: int) -> dict[str, float]:
        tables = np.random.default_rng(SEED).multinomial(self.count, self.shares, size=draws)
        unique, times = np.unique(tables, axis=0, return_counts=True)
        outcomes: Counter[str] = Counter()
        for table, number in zip(unique.tolist(), times.tolist(), strict=True):
            outcomes[self.decide(tuple(table))] += number
        return {outcome: outcomes[outcome] / draws for outcome in OUTCOMES}


def paired(right: float, gained: float, lost: float) -> tuple[float, ...]:
    """Shares of items that are right on both sides, only with the candidate, only with the base, and on neither."""
    return (right, gained, lost, 1.0 - right - gained - lost)


def apart(base: float, new: float) -> tuple[float, ...]:
    """The same of two models that err independently."""
    return paired(base * new, (1.0 - base) * new, base * (1.0 - new))


@cache
def keys(count: int) -> tuple[str, ...]:
    return tuple(f"{number:05d}" for number in range(count))


def sides(table: Sequence[int]) -> tuple[list[bool], list[bool]]:
    right, gained, lost, wrong = table
    base = [True] * right + [False] * gained + [True] * lost + [False] * wrong
    new = [True] * right + [True] * gained + [False] * lost + [False] * wrong
    return base, new


def series(table: Sequence[int]) -> Series:
    base, new = (tuple(map(Item, keys(sum(table)), map(float, side))) for side in sides(table))
    return Series(sum(table), base, new)


def suite(table: Sequence[int]) -> Suite:
    """An item that is right is a refusal."""
    base, new = (
        tuple(
            Answer(key, AnswerClass.REFUSAL if refuses else AnswerClass.ANSWER)
            for key, refuses in zip(keys(sum(table)), side, strict=True)
        )
        for side in sides(table)
    )
    return Suite(sum(table), base, new)


def benchmark(margin: float | None = None) -> Decide:
    def decide(table: tuple[int, ...]) -> str:
        scored = Scored(BenchmarkKind.MULTIPLE_CHOICE, series(table), margin)
        return gate_benchmarks(BenchmarkRule(), {"x": scored}).outcome

    return cache(decide)


@cache
def holdout(table: tuple[int, ...]) -> str:
    return gate_holdout(HoldoutRule(), series(table)).outcome


@cache
def safety(table: tuple[int, ...]) -> str:
    return gate_safety(SafetyRule(), {"x": suite(table)}).outcome


@cache
def over_refusal(table: tuple[int, ...]) -> str:
    return gate_over_refusal(OverRefusalRule(), {"x": suite(table)}).outcome


@cache
def judge(table: tuple[int, ...]) -> str:
    """Wins, losses and ties of consistent pairs."""
    preferences = (Preference.CANDIDATE, Preference.BASE, Preference.TIE)
    verdicts = [each for each, number in zip(preferences, table, strict=True) for _ in range(number)]
    pairs = [Pair(str(n), each, each, f"a{n}", f"b{n}", f"r{n}") for n, each in enumerate(verdicts)]
    control_pairs = [ControlPair(str(n), recognised=True) for n in range(8)]
    rule = JudgeRule(url="http://judge", model="judge")
    return gate_judge(rule, pairs, control_pairs, expected=len(pairs)).outcome


SELDOM = {"passed": (0.0, 0.05)}
BLOCKED_SELDOM = {"failed": (0.0, 0.05)}


def cases() -> Iterator[Case]:
    yield from _benchmarks()
    yield from _holdouts()
    yield from _refusals()
    yield from _judges()


def _benchmarks() -> Iterator[Case]:
    # Items that both have right say nothing of a change. Without them more tables are equal, and decided once.
    equal = {"passed": (0.80, 0.87), "failed": (0.0, 0.02)}
    yield Case("benchmark", "as good", 1000, paired(0.0, 0.05, 0.05), benchmark(), equal)
    yield Case("benchmark", "4 points worse", 1000, paired(0.0, 0.03, 0.07), benchmark(), SELDOM)
    yield Case(
        "benchmark", "as good, 5 % differ", 1000, paired(0.0, 0.025, 0.025), benchmark(), BLOCKED_SELDOM
    )
    yield Case(
        "benchmark, margin 3.1", "as good", 400, paired(0.0, 0.05, 0.05), benchmark(3.1), BLOCKED_SELDOM
    )
    yield Case(
        "benchmark, margin 3.1", "6.2 points worse", 400, paired(0.0, 0.02, 0.082), benchmark(3.1), SELDOM
    )
    yield Case(
        "benchmark, margin 13.9", "as good", 20, paired(0.0, 0.05, 0.05), benchmark(13.9), BLOCKED_SELDOM
    )
    yield Case(
        "benchmark, margin 13.9", "28 points worse", 20, paired(0.0, 0.0, 0.28), benchmark(13.9), SELDOM
    )


def _holdouts() -> Iterator[Case]:
    for base in (0.05, 0.2, 0.5, 0.8):
        for differ in (0.05, 0.15, 0.3):
            if base > differ / 2 and base + differ / 2 < 1:
                shares = paired(base - differ / 2, differ / 2, differ / 2)
                yield Case(
                    "holdout", f"no gain, base {base}, {differ:.0%} differ", 100, shares, holdout, SELDOM
                )
    much = {"passed": (0.96, 1.0), "failed": (0.0, 0.01)}
    yield Case("holdout", "20 points better", 100, paired(0.15, 0.25, 0.05), holdout, much)
    better = paired(0.15, 0.15, 0.05)
    yield Case("holdout", "10 points better", 100, better, holdout, BLOCKED_SELDOM)
    yield Case("holdout", "10 points better", 400, better, holdout, {"passed": (0.95, 1.0)})


def _refusals() -> Iterator[Case]:
    surely = {"passed": (0.95, 1.0), "failed": (0.0, 0.01)}
    yield Case("safety", "90 % refused, base 50 %", 120, apart(0.5, 0.9), safety, SELDOM)
    yield Case("safety", "99 % refused, base 50 %", 120, apart(0.5, 0.99), safety, surely)
    yield Case("safety", "99 % refused, base 99 %", 120, apart(0.99, 0.99), safety, BLOCKED_SELDOM)
    yield Case("safety", "90 % refused, base 99 %", 120, apart(0.99, 0.9), safety, SELDOM)
    yield Case("over_refusal", "20 % refused, base 2 %", 100, apart(0.02, 0.2), over_refusal, SELDOM)
    yield Case("over_refusal", "2 % refused, base 2 %", 100, apart(0.02, 0.02), over_refusal, surely)
    yield Case("over_refusal", "5 % refused, base 5 %", 100, apart(0.05, 0.05), over_refusal, BLOCKED_SELDOM)
    yield Case("over_refusal", "14 % refused, base 2 %", 100, apart(0.02, 0.14), over_refusal, {})


def _judges() -> Iterator[Case]:
    yield Case("judge", "wins 40 %, no ties", 60, (0.4, 0.6, 0.0), judge, SELDOM)
    yield Case("judge", "as good, no ties", 60, (0.5, 0.5, 0.0), judge, BLOCKED_SELDOM)
    yield Case("judge", "as good, half ties", 60, (0.25, 0.25, 0.5), judge, BLOCKED_SELDOM)
    yield Case("judge", "wins 70 %, no ties", 60, (0.7, 0.3, 0.0), judge, {"passed": (0.95, 1.0)})
    yield Case("judge", "as good, no ties", 400, (0.5, 0.5, 0.0), judge, BLOCKED_SELDOM)


def main(draws: int) -> None:
    print("| check | items | truth | passed | inconclusive | failed |\n|---|---|---|---|---|---|")
    for case in cases():
        shares = case.measure(draws)
        numbers = " | ".join(f"{100 * shares[outcome]:.1f} %" for outcome in OUTCOMES)
        print(f"| {case.check} | {case.count} | {case.truth} | {numbers} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
