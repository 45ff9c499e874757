"""The stages make one verdict. Missing, partial or inconclusive evidence is never a pass."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from schemas.evaluation import StageName, StageResult
from services.evaluator.gates.stages import STAGES

Outcome = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    reason: str = ""


def combine(results: Sequence[StageResult], *, required: Collection[StageName]) -> Verdict:
    """Passed only if every stage is there, every requested one passed and no required one went unasked."""
    if [result.stage for result in results] != list(STAGES):
        stages = ", ".join(result.stage for result in results) or "none"
        return Verdict("inconclusive", f"stages found: {stages}; expected: {', '.join(STAGES)}")
    if failed := [result for result in results if result.outcome == "failed"]:
        return Verdict("failed", _reasons(failed))
    open_stages = [result for result in results if result.outcome != "passed" and _matters(result, required)]
    if open_stages:
        return Verdict("inconclusive", _reasons(open_stages))
    if not any(result.outcome == "passed" for result in results):
        return Verdict("inconclusive", "no stage was requested, so nothing is known of the model")
    return Verdict("passed")


def _matters(result: StageResult, required: Collection[StageName]) -> bool:
    return result.outcome != "not_requested" or result.stage in required


def _reasons(results: Sequence[StageResult]) -> str:
    return "; ".join(f"{result.stage}: {result.reason or result.outcome}" for result in results)
