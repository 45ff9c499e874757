"""The checks make one verdict. Missing, partial or inconclusive evidence is never a pass."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from schemas.evaluation import CheckName, CheckResult
from services.evaluator.gates.checks import CHECKS

Outcome = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    reason: str = ""


def combine(results: Sequence[CheckResult], *, required: Collection[CheckName]) -> Verdict:
    """Return passed only if every check is there, every requested one passed and every required one was asked."""
    if [result.check for result in results] != list(CHECKS):
        checks = ", ".join(result.check for result in results) or "none"
        return Verdict("inconclusive", f"checks found: {checks}; expected: {', '.join(CHECKS)}")
    if failed := [result for result in results if result.outcome == "failed"]:
        return Verdict("failed", _reasons(failed))
    open_checks = [result for result in results if result.outcome != "passed" and _matters(result, required)]
    if open_checks:
        return Verdict("inconclusive", _reasons(open_checks))
    if not any(result.outcome == "passed" for result in results):
        return Verdict("inconclusive", "no check was requested, so nothing is known of the model")
    return Verdict("passed")


def _matters(result: CheckResult, required: Collection[CheckName]) -> bool:
    return result.outcome != "not_requested" or result.check in required


def _reasons(results: Sequence[CheckResult]) -> str:
    return "; ".join(f"{result.check}: {result.reason or result.outcome}" for result in results)
