"""Where queued jobs stand."""

from schemas.job import JobPaused, QueuePositionChanged
from services.gateway import readmodels
from shared.messaging.unit import Unit


async def changed(event: QueuePositionChanged, unit: Unit) -> None:
    """Another topic than the job's own: it may come before the job is queued, and after it has nodes."""
    assert unit.envelope is not None, "events come with an envelope"
    place = event.model_dump(mode="json", exclude={"job_id", "tenant"})
    place["as_of"] = unit.envelope.time.isoformat()
    await readmodels.update_job(unit.conn, event.job_id, event.tenant, place=place)


async def paused(event: JobPaused, unit: Unit) -> None:
    """It stands in the queue no more."""
    await readmodels.update_job(unit.conn, event.job_id, event.tenant, phase="paused", place=None)
