"""What eval.events say beside their rows: suites of the gate's policy, and evaluations that were asked for."""

from schemas import evaluation
from services.gateway import store, tables
from services.gateway.projections import envelope_of
from shared.messaging.unit import Unit


async def policy_published(event: evaluation.GatePolicyPublished, unit: Unit) -> None:
    """Save the policy, and its suites: they may have been registered before this gateway listed any, or their own
    events are on their way on another partition.
    """
    await tables.save_gate_policy(unit.conn, event)
    for suite in event.suites:
        is_benchmark = suite.check == "benchmark"
        detail = {} if is_benchmark else {"expects": "answer" if suite.check == "over_refusal" else "refusal"}
        row = {
            **suite.model_dump(include={"name", "digest", "rows", "registered_at"}),
            "is_benchmark": is_benchmark,
            "detail": detail,
            "file_id": suite.file.file_id,
            "sha256": suite.file.sha256,
            "examples_file_id": suite.examples and suite.examples.file_id,
            "examples_sha256": suite.examples and suite.examples.sha256,
        }
        await tables.SUITE.save(unit.conn, row)


async def answered(event: evaluation.EvalFact, unit: Unit) -> None:
    await store.answer_evaluation(unit.conn, envelope_of(unit).causation_id)


async def progressed(event: evaluation.EvalProgressed, unit: Unit) -> None:
    """Progress that comes after the verdict, from a process that did not know of it, changes no row."""
    await tables.clear_waiting(unit.conn, event.job_id, event.tenant)
