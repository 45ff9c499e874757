"""What training.events, checkpoint.events and run.metrics tell: certificates, bundles and the numbers of steps."""

from collections.abc import Awaitable, Callable
from typing import Any

from schemas import training
from services.gateway import readmodels
from services.gateway.decide import steps_to_show
from shared.messaging.unit import Unit

Projection = Callable[[Any, Unit], Awaitable[None]]


async def prepared(event: training.TrainingPrepared, unit: Unit) -> None:
    preparation = {"attempt": event.attempt} | event.preparation.model_dump(mode="json")
    await readmodels.update_job(unit.conn, event.job_id, event.tenant, preparation=preparation)


async def resumed(event: training.TrainingResumed, unit: Unit) -> None:
    certificate = event.certificate.model_dump(mode="json")
    await readmodels.update_job(unit.conn, event.job_id, event.tenant, certificate=certificate)


async def written(event: training.CheckpointWritten, unit: Unit) -> None:
    await _save_checkpoint(event, unit, kind=event.kind.value, metrics=event.metrics, state="written")
    await readmodels.update_job(unit.conn, event.job_id, event.tenant, last_step=event.bundle.step)
    measured = training.BundleMetrics.model_validate(event.metrics)
    loss = measured.valid_loss if measured.full_valid_loss is None else measured.full_valid_loss
    if loss is not None:
        num_steps = await unit.conn.fetchval(readmodels.NUM_STEPS, event.job_id)
        numbers = {"attempt": event.attempt} | measured.by_name
        await _tell(event, unit, event.bundle.step, num_steps, f"validation loss {loss:.4f}", numbers)


def verdict(state: str) -> Projection:
    async def update(event: Any, unit: Unit) -> None:
        await _save_checkpoint(event, unit, kind="", metrics={}, state=state)

    return update


async def _save_checkpoint(
    event: Any, unit: Unit, *, kind: str, metrics: dict[str, float], state: str
) -> None:
    bundle = event.bundle
    await unit.conn.execute(
        readmodels.SAVE_CHECKPOINT,
        event.job_id,
        bundle.attempt,
        bundle.step,
        bundle.manifest_sha256,
        event.tenant,
        kind,
        metrics,
        state,
        unit.now,
    )


async def completed(event: training.TrainingCompleted, unit: Unit) -> None:
    await readmodels.update_job(unit.conn, event.job_id, event.tenant, last_step=event.last_step)


async def recorded(event: training.StepsRecorded, unit: Unit) -> None:
    """Every step in the read model; of a long job, some in the timeline. They are a runner's claims."""
    await readmodels.require_attempt(unit.conn, event.job_id, event.tenant, event.attempt)
    await readmodels.save_steps(unit.conn, event.job_id, event.attempt, event.steps)
    num_steps = await unit.conn.fetchval(readmodels.NUM_STEPS, event.job_id)
    for step in steps_to_show(event.steps, num_steps):
        numbers = {
            "attempt": event.attempt,
            "train_loss": step.loss,
            "learning_rate": step.learning_rate,
            "grad_norm": step.grad_norm,
            "tokens_per_second": step.tokens_per_second,
            "epoch": step.epoch,
        }
        await _tell(event, unit, step.step, num_steps, f"training loss {step.loss:.4f}", numbers)


async def _tell(
    event: training.AttemptMessage,
    unit: Unit,
    step: int,
    num_steps: int | None,
    message: str,
    numbers: dict[str, float],
) -> None:
    """An event of type `metrics` in the job's timeline, as OpenAI has them."""
    assert unit.envelope is not None, "events come with an envelope"
    of = "" if num_steps is None else f"/{num_steps}"
    data = {"step": step, "total_steps": num_steps, **numbers}
    await readmodels.add_metrics(
        unit.conn,
        event.job_id,
        event.tenant,
        unit.envelope.id,
        f"Step {step}{of}: {message}",
        data,
        unit.envelope.time,
    )
