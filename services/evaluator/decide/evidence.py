"""What a verdict was reached by, and what of it proves nothing because it was trained on."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from schemas.evaluation import CheckName, CheckResult, Evidence, JudgedSuite
from schemas.job import Artifact
from services.evaluator.decide.plan import HOLDOUT, Known


def evidence_of(
    artifact: Artifact,
    files: Sequence[Known],
    *,
    harness_version: str,
    required: Collection[CheckName],
    measured_by: str | None = None,
) -> Evidence:
    """Return what a verdict is reached by.

    artifact: as the job announced it, with the suites that the rows were checked against.
    """
    return Evidence(
        harness_version=harness_version,
        rules=dict(_rules(artifact.gate.model_dump(mode="json"))),
        required_checks=tuple(sorted(required)),
        suites=tuple(_judged(known, artifact) for known in files if known.suite is not None),
        holdout_sha256=artifact.holdout.sha256 if artifact.holdout else None,
        kept_leaks=artifact.kept_leaks,
        measured_by=measured_by,
    )


def without_leaks(
    checks: Iterable[CheckResult], files: Sequence[Known], kept_leaks: Mapping[str, int]
) -> tuple[CheckResult, ...]:
    """Make a check that passed on rows of its own source inconclusive. One that failed in spite of them failed."""
    return tuple(_without_leaks(check, _sources(check.check, files), kept_leaks) for check in checks)


def _without_leaks(
    result: CheckResult, sources: Collection[str], kept_leaks: Mapping[str, int]
) -> CheckResult:
    leaks = [f"{kept_leaks[name]} rows of {name}" for name in sorted(sources) if kept_leaks.get(name)]
    if result.outcome != "passed" or not leaks:
        return result
    reason = f"{' and '.join(leaks)} were kept among the training rows"
    return result.model_copy(update={"outcome": "inconclusive", "reason": reason})


def _sources(check: CheckName, files: Sequence[Known]) -> frozenset[str]:
    """Return the sources that a check asks. The judge asks the holdout's prompts."""
    if check == "judge":
        return frozenset({HOLDOUT})
    return frozenset(known.name for known in files if known.check == check)


def _judged(known: Known, artifact: Artifact) -> JudgedSuite:
    assert known.suite is not None, "the holdout is no suite"
    checked = artifact.suites if known.is_safety else artifact.benchmarks
    return JudgedSuite(
        check=known.check,
        name=known.name,
        digest=known.digest,
        rows=known.suite.rows,
        is_checked_against_rows=checked.get(known.name) == known.digest,
    )


def _rules(spec: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in spec.items():
        if isinstance(value, dict):
            yield from _rules(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value)
