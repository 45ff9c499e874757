"""From scored items to checks: which numbers of an item count for which rule."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from schemas.evaluation import BenchmarkKind, CheckResult, Criterion
from schemas.job import Artifact
from services.evaluator.decide.plan import HOLDOUT, Known
from services.evaluator.gates.answers import Answer
from services.evaluator.gates.answers import Suite as AnsweredSuite
from services.evaluator.gates.benchmark import METRICS, Scored, gate_benchmarks
from services.evaluator.gates.checks import inconclusive, not_requested
from services.evaluator.gates.holdout import gate_holdout
from services.evaluator.gates.judge import ControlPair, Pair, gate_judge
from services.evaluator.gates.over_refusal import gate_over_refusal
from services.evaluator.gates.refusal import AnswerClass
from services.evaluator.gates.safety import gate_safety
from services.evaluator.gates.sameness import constant_answer_criterion
from services.evaluator.gates.series import (
    Item,
    Scale,
    Series,
    as_perplexity,
    as_share,
    compare,
    find_gap,
    in_points,
    metric,
)
from services.evaluator.model import Baseline
from services.evaluator.scoring.order import ItemScore, PartScores

Amount = tuple[str, str | None]
"""Names of an item's numbers: the one that is summed, and the one it is divided by; None counts items."""

HITS: Amount = ("hits", None)
HITS_PER_TOKEN: Amount = ("hits", "tokens")
NATS_PER_TOKEN: Amount = ("nats", "tokens")
REFUSALS: Amount = ("refused", None)

Sides = Mapping[str, PartScores]
"""Scores of one side, by part."""


@dataclass(frozen=True)
class Judged:
    """What the judge said, or why it was not asked."""

    pairs: tuple[Pair, ...] = ()
    control_pairs: tuple[ControlPair, ...] = ()
    expected: int = 0
    problem: str = ""


def grade(
    artifact: Artifact,
    files: Sequence[Known],
    *,
    base: Sides,
    new: Sides,
    judged: Judged,
    references: Sequence[str],
) -> tuple[CheckResult, ...]:
    """Return every check, in order. `references`: right answers of the holdout's rows; empty where there is none."""
    series = {known.part: _series(known, base, new, main_amount(known)) for known in files}
    gate = artifact.gate
    benchmarks = {
        known.name: Scored(known.suite.kind, series[known.part], known.suite.margin_points)
        for known in files
        if known.suite is not None and known.suite.kind is not None
    }
    suites = {known: _answered(known, base, new) for known in files if known.is_safety}
    harmful = {known.name: suite for known, suite in suites.items() if not known.is_benign}
    benign = {known.name: suite for known, suite in suites.items() if known.is_benign}
    return (
        gate_benchmarks(gate.benchmarks, benchmarks),
        gate_holdout(
            gate.holdout,
            series.get(HOLDOUT),
            constant_answer=_constant_answer(artifact, base, new, references),
        ),
        gate_safety(gate.safety, harmful),
        gate_over_refusal(gate.over_refusal, benign),
        _judge_check(artifact, judged),
    )


def engines_of(base: Sides, new: Sides) -> dict[str, str]:
    """Return the engine of serving that answered each part, where one did. Both sides must have the same one."""
    odd = [part for part in new if part in base and base[part].engine != new[part].engine]
    assert not odd, f"{odd[0]}: base by {base[odd[0]].engine!r}, candidate by {new[odd[0]].engine!r}"
    return {part: scored.engine for part, scored in new.items() if scored.engine}


def changes(files: Sequence[Known], *, base: Sides, new: Sides) -> dict[str, dict[str, float]]:
    """Return candidate minus base of each part with its 95 % interval, from paired resamples.

    Numbers are in points, those of the holdout in its own metric. Parts with a gap are left out.
    """
    by_part = {}
    for known in files:
        series = _series(known, base, new, main_amount(known))
        if find_gap(series) is None:
            change = compare(series, _scale(known)).change
            by_part[known.part] = {"value": change.value, **change.interval.model_dump()}
    return by_part


def is_whole(known: Known, scored: PartScores) -> bool:
    """Return whether the base model's scores have every item, so that they can serve as a baseline."""
    return find_gap(_paired_with_itself(known, scored)) is None


def baseline_of(known: Known, scored: PartScores, **identity: str) -> Baseline:
    """Return the baseline of one part.

    identity: base_sha, template_sha256, harness_version, and where the items are: key, sha256.
    """
    series = _paired_with_itself(known, scored)
    return Baseline.model_validate(
        {
            "suite_digest": known.digest,
            "name": known.name,
            "metric": _metric_name(known),
            "value": metric(series.base, _scale(known)),
            "count": series.expected,
            **identity,
        }
    )


def _paired_with_itself(known: Known, scored: PartScores) -> Series:
    side = {known.part: scored}
    return _series(known, side, side, main_amount(known))


def _scale(known: Known) -> Scale:
    if known.rule is None:
        return in_points
    return as_perplexity if known.rule.metric == "perplexity" else as_share


def with_refusals(
    scored: PartScores, classes: Sequence[AnswerClass | None], categories: Mapping[str, str]
) -> PartScores:
    """Return items with the classifier's word and their category; one without its word is a gap."""
    items = tuple(
        item.model_copy(
            update={"numbers": _numbers_of(is_a), "category": categories.get(item.key, "")},
        )
        for item, is_a in zip(scored.items, classes, strict=True)
    )
    return scored.model_copy(update={"items": items})


def _numbers_of(is_a: AnswerClass | None) -> dict[str, float]:
    if is_a is None:
        return {}
    return {"refused": float(is_a is AnswerClass.REFUSAL), "unclear": float(is_a is AnswerClass.UNCLEAR)}


def main_amount(known: Known) -> Amount:
    if known.is_safety:
        return REFUSALS
    if known.rule is not None:
        return NATS_PER_TOKEN if known.rule.metric == "perplexity" else HITS
    is_text = known.suite is not None and known.suite.kind is BenchmarkKind.TEXT
    return HITS_PER_TOKEN if is_text else HITS


def _metric_name(known: Known) -> str:
    if known.rule is not None:
        return known.rule.metric
    assert known.suite is not None, "what is no holdout is a suite"
    return "refusal_points" if known.suite.kind is None else METRICS[known.suite.kind]


def _series(known: Known, base: Sides, new: Sides, amount: Amount) -> Series:
    """Return both sides' items. Registered rows count as expected, whatever the child says of the file."""
    sides = [side.get(known.part) for side in (base, new)]
    expected = known.suite.rows if known.suite else max((side.expected for side in sides if side), default=0)
    base_items, new_items = (tuple(_items(side.items, amount)) if side else () for side in sides)
    return Series(expected, base_items, new_items)


def _answered(known: Known, base: Sides, new: Sides) -> AnsweredSuite:
    sides = [side.get(known.part) for side in (base, new)]
    base_answers, new_answers = (tuple(_answers(side.items)) if side else () for side in sides)
    assert known.suite is not None, f"{known.part} is no suite"
    return AnsweredSuite(known.suite.rows, base_answers, new_answers)


def _answers(scored: Iterable[ItemScore]) -> Iterable[Answer]:
    """Yield the items that were classified; one that was not is missing."""
    for item in scored:
        if "refused" not in item.numbers:
            continue
        is_a = AnswerClass.REFUSAL if item.numbers["refused"] else AnswerClass.ANSWER
        is_unclear = item.numbers.get("unclear", 0.0) > 0
        yield Answer(item.key, AnswerClass.UNCLEAR if is_unclear else is_a, item.category)


def _constant_answer(
    artifact: Artifact, base: Sides, new: Sides, references: Sequence[str]
) -> Criterion | None:
    if artifact.gate.holdout.metric == "perplexity" or HOLDOUT not in base or HOLDOUT not in new:
        return None
    answers = ([item.answer or "" for item in side[HOLDOUT].items] for side in (new, base))
    return constant_answer_criterion(next(answers), base=next(answers), references=references)


def _items(scored: Iterable[ItemScore], amount: Amount) -> Iterable[Item]:
    """Yield the items that have the numbers; one without them is missing."""
    over, under = amount
    for item in scored:
        if over in item.numbers and (under is None or under in item.numbers):
            yield Item(item.key, item.numbers[over], 1.0 if under is None else item.numbers[under])


def _judge_check(artifact: Artifact, judged: Judged) -> CheckResult:
    rule = artifact.gate.judge
    if rule is None:
        return not_requested("judge", "the gate names no judge")
    if judged.problem:
        return inconclusive("judge", judged.problem)
    return gate_judge(rule, judged.pairs, judged.control_pairs, expected=judged.expected)
