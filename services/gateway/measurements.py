"""Numbers of checkpoints and of steps: rows of steps, and events of type `metrics` in the job's timeline."""

from collections.abc import Mapping

from schemas import training
from services.gateway import tables
from services.gateway.decide import steps_to_show
from services.gateway.model import JobCourse
from services.gateway.projections import envelope_of
from shared.messaging.unit import Unit
from shared.signatures import require_signature

NOT_SHOWN = ("loss", "num_tokens")
"""Numbers of a step that the timeline has under another name, or not at all."""


async def written(event: training.CheckpointWritten, unit: Unit) -> None:
    """What was measured at a step that the recipe names is reported already, by `recorded`."""
    await tables.update_job(unit.conn, event.job_id, event.tenant, last_step=event.bundle.step)
    course = await tables.find_course(unit.conn, event.job_id)
    if course.recipe_at(event.bundle.step).has_validations:
        return
    await _add_validation(event, unit, event.bundle.step, course.num_steps, event.metrics)
    if (loss := _loss_of(training.BundleMetrics.model_validate(event.metrics))) is not None:
        await tables.update_job(unit.conn, event.job_id, event.tenant, valid_loss=loss)


def _loss_of(measured: training.BundleMetrics) -> float | None:
    """Return the loss on the whole validation file, as after the last step, or else on some of its windows."""
    return measured.valid_loss if measured.full_valid_loss is None else measured.full_valid_loss


async def _add_validation(
    event: training.AttemptMessage, unit: Unit, step: int, num_steps: int | None, metrics: Mapping[str, float]
) -> None:
    measured = training.BundleMetrics.model_validate(metrics)
    loss = _loss_of(measured)
    if loss is None:
        return
    preferred = _preferred(measured.reward_margin, measured.reward_accuracy)
    message = f"validation loss {loss:.4f}{_perplexities(measured)}{_as_served(measured)}{preferred}"
    await _add_metrics(event, unit, step, num_steps, message, {"attempt": event.attempt} | measured.by_name)


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
    """Every step in the read model; of a long job, some in the timeline. They are claims of node 0."""
    await tables.require_attempt(unit.conn, event.job_id, event.tenant, event.attempt)
    require_signature(unit.record, await tables.find_public_key(unit.conn, event.job_id, event.attempt))
    await tables.save_steps(unit.conn, event.job_id, event.attempt, event.steps)
    course = await tables.find_course(unit.conn, event.job_id)
    num_steps = course.num_steps
    for step in steps_to_show(event.steps, num_steps):
        as_measured = {name: value for name, value in step.by_name.items() if name not in NOT_SHOWN}
        numbers = {"attempt": event.attempt, "train_loss": step.loss, **as_measured}
        preferred = _preferred(step.reward_margin, step.reward_accuracy)
        await _add_metrics(
            event, unit, step.step, num_steps, f"training loss {step.loss:.4f}{preferred}", numbers
        )
    if event.validations:
        await _validated(event, unit, course)


async def _validated(event: training.StepsRecorded, unit: Unit, course: JobCourse) -> None:
    await tables.save_validations(unit.conn, event.job_id, event.attempt, event.validations)
    newest = max(event.validations, key=lambda each: each.step)
    every = course.recipe_at(newest.step).eval_every_steps
    for each in steps_to_show(event.validations, course.num_steps, every=every):
        await _add_validation(event, unit, each.step, course.num_steps, each.metrics)
    loss = newest.metrics.get("full_valid_loss")
    await tables.update_job(unit.conn, event.job_id, event.tenant, valid_loss=loss)


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
