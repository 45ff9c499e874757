"""Alerts as the tracker raises them, for tests of those who listen."""

from schemas.alert import AlertCleared, AlertRaised, AlertRule
from tests.integration.gateway.world import World
from tests.waiting import until


async def raise_alert(
    world: World, job_id: str, rule: AlertRule = AlertRule.LOSS_SPIKE, **changes: object
) -> AlertRaised:
    """Raised in the job's first attempt, and known to the gateway."""
    of_alert = {"job_id": job_id, "tenant": "demo", "attempt": 1, "rule": rule, "episode": 1, "step": 10}
    numbers = {"value": 9.5, "limit": 2.0, "message": "loss 9.5, usually 2"}
    raised = AlertRaised.model_validate(of_alert | numbers | changes)
    await world.voices.say("tracker", raised)
    query = "SELECT true FROM alert WHERE job_id = $1 AND rule = $2 AND episode = $3"
    await until(
        lambda: world.db.fetchval(query, job_id, rule.value, raised.episode), f"the alert of {job_id}"
    )
    return raised


async def clear(world: World, raised: AlertRaised, *, step: int) -> None:
    fields = raised.model_dump(include={"job_id", "tenant", "attempt", "rule", "episode"})
    await world.voices.say("tracker", AlertCleared(**fields, step=step, message="it is as usual again"))
    query = "SELECT cleared_at IS NOT NULL FROM alert WHERE job_id = $1 AND rule = $2 AND episode = $3"
    await until(
        lambda: world.db.fetchval(query, raised.job_id, raised.rule.value, raised.episode),
        "the alert cleared",
    )


async def page_of_an_alert(world: World, job_id: str, step: int, **changes: object) -> str:
    """Address of the page of an alert about a spike."""
    raised = await raise_alert(world, job_id, step=step, limit=2.5, unit="loss", **changes)
    query = "SELECT number FROM alert WHERE job_id = $1 AND rule = $2 AND episode = $3"
    number = await world.db.fetchval(query, raised.job_id, raised.rule.value, raised.episode)
    return f"/alerts/alert-{number}"
