"""Alerts as people see them: the list, the job, its timeline, and the tenant's own topic."""

import pytest

from schemas.alert import AlertCleared, AlertRule
from tests.integration.gateway.alerting import raise_alert
from tests.integration.gateway.pages import logged_in
from tests.integration.gateway.world import World
from tests.waiting import until

PAUSES_AT_SPIKES = """
    UPDATE job SET spec = jsonb_set(spec, '{alerts}', '{"loss_spike": "pause"}') WHERE job_id = $1"""

pytestmark = pytest.mark.stack


async def alerts_of(world: World, job: str, query: str = "") -> list[dict]:
    return (await world.ask("GET", f"/alerts?job_id={job}{query}")).json()["data"]


async def test_an_alert_is_shown_until_it_is_cleared_and_after(world: World):
    job = await world.a_running_job()
    await world.db.execute(PAUSES_AT_SPIKES, job)
    raised = await raise_alert(world, job)
    [shown] = await alerts_of(world, job, "&open=true")
    names = ("rule", "attempt", "episode", "step", "value", "limit", "action", "message", "cleared_at")
    assert tuple(shown[name] for name in names) == (
        *("loss_spike", 1, 1, 10, 9.5, 2.0, "pause", "loss 9.5, usually 2", None),
    )
    of_job = (await world.ask("GET", f"/fine_tuning/jobs/{job}")).json()["retune"]["alerts"]
    assert [(alert["rule"], alert["message"]) for alert in of_job] == [("loss_spike", "loss 9.5, usually 2")]

    fields = raised.model_dump(include={"job_id", "tenant", "attempt", "rule", "episode"})
    await world.voices.say("tracker", AlertCleared(**fields, step=30, message="loss 2.1, usually 2"))
    await until(lambda: is_cleared(world, job), "the alert cleared")
    [shown] = await alerts_of(world, job)
    assert shown["cleared_at"] >= shown["created_at"]
    assert shown["cleared_by"] == "loss 2.1, usually 2"
    assert await alerts_of(world, job, "&open=true") == []
    assert (await world.ask("GET", f"/fine_tuning/jobs/{job}")).json()["retune"]["alerts"] == []
    events = (await world.ask("GET", f"/fine_tuning/jobs/{job}/events?limit=100")).json()["data"]
    lines = [(each["level"], each["message"]) for each in events if "alert" in each["message"]]
    assert lines == [
        ("info", "alert loss_spike cleared: loss 2.1, usually 2"),
        ("warn", "alert loss_spike: loss 9.5, usually 2"),
    ]


async def is_cleared(world: World, job: str) -> bool:
    return bool(await world.db.fetchval("SELECT cleared_at IS NOT NULL FROM alert WHERE job_id = $1", job))


async def test_pages_follow_one_another_newest_first(world: World):
    job = await world.a_running_job()
    rules = [AlertRule.LOSS_SPIKE, AlertRule.STALL, AlertRule.PLATEAU]
    for rule in rules:
        await raise_alert(world, job, rule)
    seen, after = [], ""
    while True:
        page = (await world.ask("GET", f"/alerts?job_id={job}&limit=2{after}")).json()
        seen += [alert["rule"] for alert in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert seen == [rule.value for rule in reversed(rules)]


async def test_an_alert_reaches_the_tenants_own_topic(world: World):
    job = await world.a_running_job()
    raised = await raise_alert(world, job)
    query = "SELECT true FROM outbox WHERE topic = 'tenant.demo.events' AND aggregate_id = $1 AND type = $2"
    await until(lambda: world.db.fetchval(query, job, raised.type), "the copy")


@pytest.mark.parametrize("query", ["open=perhaps", "limit=0", "limit=101", "after=x"])
async def test_what_is_asked_wrongly_is_refused(world: World, query: str):
    assert (await world.ask("GET", f"/alerts?{query}")).status_code == 400


async def test_a_job_says_what_its_alerts_do(world: World):
    body = {
        "model": world.base_name,
        "training_file": (await world.upload())["id"],
        "retune": {"alerts": {"divergence": "stop", "expected_cost": "12.50"}, "max_cost": "20"},
    }
    job = (await world.ask("POST", "/fine_tuning/jobs", json=body)).json()
    submitted = (await world.heard(job["id"], "SubmitJob")).message
    assert submitted.spec.alert_actions.action_of(AlertRule.DIVERGENCE) == "stop"
    refused = await world.ask(
        "POST", "/fine_tuning/jobs", json=body | {"retune": {"alerts": {"divergence": "shout"}}}
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "retune.alerts.divergence")


async def test_a_person_sees_it_on_the_pages_of_now_of_the_job_and_of_alerts(world: World):
    job = await world.a_running_job()
    await raise_alert(world, job)
    async with logged_in(world) as person:
        now, alerts, of_job = [
            (await person.get(path)).text for path in ("/", f"/alerts?job={job}", f"/jobs/{job}")
        ]
    for page in (now, alerts):
        assert f'href="/jobs/{job}/timeline"' in page
    for page in (now, alerts, of_job):
        assert "loss spike" in page
        assert "loss 9.5, usually 2" in page
