"""What eval.events tell: evaluations and their progress, suites, and what the gate demands."""

from collections.abc import Awaitable, Callable
from typing import Any

from schemas import evaluation
from schemas.base import FileRef
from services.gateway import readmodels, store
from shared.messaging.unit import Unit

Projection = Callable[[Any, Unit], Awaitable[None]]


async def suite_registered(
    event: evaluation.BenchmarkRegistered | evaluation.SafetySuiteRegistered, unit: Unit
) -> None:
    assert unit.envelope is not None, "events come with an envelope"
    is_benchmark = isinstance(event, evaluation.BenchmarkRegistered)
    detail = event.model_dump(mode="json", exclude={"name", "digest", "rows", "file", "examples"})
    values = (event.name, is_benchmark, event.digest, event.rows, detail, unit.envelope.time)
    await unit.conn.execute(
        readmodels.SAVE_SUITE, *values, *_files(event.file, getattr(event, "examples", None))
    )


async def policy_published(event: evaluation.GatePolicyPublished, unit: Unit) -> None:
    """Its suites were registered before this gateway listed any, or are on their way on another partition."""
    await unit.conn.execute(
        readmodels.SAVE_POLICY, event.model_dump(mode="json", exclude={"scope", "suites"})
    )
    for suite in event.suites:
        is_benchmark = suite.stage == "benchmark"
        detail = {} if is_benchmark else {"expects": "answer" if suite.stage == "over_refusal" else "refusal"}
        values = (suite.name, is_benchmark, suite.digest, suite.rows, detail, suite.registered_at)
        await unit.conn.execute(readmodels.SAVE_SUITE, *values, *_files(suite.file, suite.examples))


def _files(file: FileRef, examples: FileRef | None) -> tuple[str | None, ...]:
    """Id and sha256 of both; neither may be removed while the suite is asked."""
    return (file.file_id, file.sha256, *((examples.file_id, examples.sha256) if examples else (None, None)))


def evaluated(outcome: str) -> Projection:
    async def update(event: Any, unit: Unit) -> None:
        stages = [stage.model_dump(mode="json") for stage in getattr(event, "stages", ())]
        reason = getattr(event, "reason", "")
        evidence = getattr(event, "evidence", None)
        await unit.conn.execute(
            readmodels.SAVE_EVALUATION,
            event.eval_id,
            event.tenant,
            event.job_id,
            event.model_id,
            outcome,
            reason,
            stages,
            event.number,
            evidence and evidence.model_dump(mode="json"),
            unit.now,
        )
        assert unit.envelope is not None, "events come with an envelope"
        await unit.conn.execute(store.ANSWER_EVALUATION, unit.envelope.causation_id)

    return update


async def progressed(event: evaluation.EvalProgressed, unit: Unit) -> None:
    """What comes after the verdict, from a process that did not know of it, says nothing."""
    fields = {"stage", "suite", "side", "items_done", "items_total", "seconds_left"}
    await unit.conn.execute(
        readmodels.SAVE_EVAL_PROGRESS, event.eval_id, event.model_dump(mode="json", include=fields)
    )
    await unit.conn.execute(readmodels.GO_ON, event.job_id, event.tenant)
