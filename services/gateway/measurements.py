"""Numbers of checkpoints and of steps: rows of steps, and events of type `metrics` in the job's timeline."""

from collections.abc import Mapping

from schemas import training
from services.gateway import tables
from services.gateway.decide import steps_to_show
from services.gateway.projections import envelope_of
from shared.messaging.unit import Unit


async def written(event: training.CheckpointWritten, unit: Unit) -> None:
    await tables.update_job(unit.conn, event.job_id, event.tenant, last_step=event.bundle.step)
    measured = training.BundleMetrics.model_validate(event.metrics)
    loss = measured.valid_loss if measured.full_valid_loss is None else measured.full_valid_loss
    if loss is not None:
        num_steps = await tables.find_num_steps(unit.conn, event.job_id)
        numbers = {"attempt": event.attempt} | measured.by_name
        preferred = _preferred(measured.reward_margin, measured.reward_accuracy)
        message = f"validation loss {loss:.4f}{_perplexities(measured)}{_as_served(measured)}{preferred}"
        await _add_metrics(event, unit, event.bundle.step, num_steps, message, numbers)


def _perplexities(measured: training.BundleMetrics) -> str:
    if measured.perplexity is None:
        return ""
    start = measured.start_perplexity
    before = "" if start is None else f", {start:.4g} before the first step"
    return f", perplexity {measured.perplexity:.4g}{before}"


def _as_served(measured: training.BundleMetrics) -> str:
    """What the adapter loses, or gains, by a base that is not quantised."""
    served, quantized = measured.served_valid_loss, measured.valid_loss
    if served is None or quantized is None:
        return ""
    return f", on the base as it is served {served - quantized:+.4f}"


def _preferred(margin: float | None, accuracy: float | None) -> str:
    if margin is None or accuracy is None:
        return ""
    return f", chosen answers preferred in {accuracy:.1%} by {margin:.4g} on average"


async def recorded(event: training.StepsRecorded, unit: Unit) -> None:
    """Every step in the read model; of a long job, some in the timeline. They are a runner's claims."""
    await tables.require_attempt(unit.conn, event.job_id, event.tenant, event.attempt)
    await tables.save_steps(unit.conn, event.job_id, event.attempt, event.steps)
    num_steps = await tables.find_num_steps(unit.conn, event.job_id)
    for step in steps_to_show(event.steps, num_steps):
        numbers = {
            "attempt": event.attempt,
            "train_loss": step.loss,
            "learning_rate": step.learning_rate,
            "grad_norm": step.grad_norm,
            "tokens_per_second": step.tokens_per_second,
            "epoch": step.epoch,
            **step.rewards,
        }
        preferred = _preferred(step.reward_margin, step.reward_accuracy)
        await _add_metrics(
            event, unit, step.step, num_steps, f"training loss {step.loss:.4f}{preferred}", numbers
        )


async def _add_metrics(
    event: training.AttemptMessage,
    unit: Unit,
    step: int,
    num_steps: int | None,
    message: str,
    numbers: Mapping[str, float],
) -> None:
    """An event of type `metrics` in the job's timeline, as OpenAI has them."""
    envelope = envelope_of(unit)
    of = "" if num_steps is None else f"/{num_steps}"
    await tables.add_metrics(
        unit.conn,
        event.job_id,
        event.tenant,
        envelope.id,
        f"Step {step}{of}: {message}",
        {"step": step, "total_steps": num_steps, **numbers},
        envelope.time,
    )
