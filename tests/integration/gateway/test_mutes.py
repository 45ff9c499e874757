"""Mutes of alert rules at the gateway: commands, what they hold back, whose they are, and the page."""

import asyncio
from datetime import timedelta

import pytest

from schemas.alert import AlertCleared, AlertRaised, AlertRule, AlertsMuted, AlertsUnmuted
from shared.clock import utc_now
from tests.integration.gateway.pages import csrf_in, logged_in, words_of
from tests.integration.gateway.world import World, mark, new_key
from tests.waiting import until

pytestmark = pytest.mark.stack

KEY = "key_1 of tenant"


@pytest.fixture
async def tenant(world: World) -> str:
    tenant = f"t-{mark()}"
    world.keys[tenant] = await new_key(world, tenant)
    return tenant


async def raised(
    world: World, tenant: str, job_id: str, rule: AlertRule = AlertRule.STALL, **changes: object
) -> AlertRaised:
    fields = {"job_id": job_id, "tenant": tenant, "attempt": 1, "rule": rule, "episode": 1, "step": 10}
    numbers = {"value": 61.0, "limit": 40.0, "unit": "seconds", "message": f"no step for 61 s: {job_id}"}
    fact = AlertRaised.model_validate(fields | numbers | changes)
    await world.voices.say("tracker", fact)
    query = "SELECT true FROM alert WHERE job_id = $1 AND rule = $2"
    await until(lambda: world.db.fetchval(query, job_id, rule.value), f"the alert of {job_id}")
    return fact


async def muted(world: World, tenant: str, **changes: object) -> None:
    """The tracker's answer to a command, as if there had been one."""
    fact = AlertsMuted.model_validate(
        {"tenant": tenant, "rule": "stall", "until": None, "muted_by": KEY} | changes
    )
    await world.voices.say("tracker", fact)
    query = "SELECT true FROM alert_mute WHERE tenant = $1 AND rule = $2 AND job_id = $3"
    key = tenant, fact.rule.value, fact.job_id or ""
    await until(lambda: world.db.fetchval(query, *key), "the mute")


async def count_of(world: World, tenant: str) -> str:
    """The number of open alerts beside Alerts on each page; empty where it is hidden."""
    async with logged_in(world, tenant) as client:
        html = (await client.get("/sweeps")).text
    shown = html.partition('id="num-alerts"')[2].partition("</span>")[0]
    return "" if " hidden" in shown else shown.rpartition(">")[2]


async def open_alerts(world: World, tenant: str, query: str = "") -> list[dict]:
    return (await world.ask("GET", f"/alerts?open=true{query}", tenant=tenant)).json()["data"]


async def test_a_mute_is_asked_for_once_by_key_and_answered_by_its_fact(world, tenant):
    job_id = await world.a_running_job(tenant)
    until_then = (utc_now() + timedelta(hours=8)).replace(microsecond=0)
    body = {"rule": "stall", "job_id": job_id, "until": until_then.isoformat()}
    headers = {"Idempotency-Key": "once"}
    before = world.ear.types(tenant).count("MuteAlerts")
    asking = [
        asyncio.create_task(world.ask("POST", "/alerts/mutes", tenant=tenant, json=body, headers=headers))
        for _ in range(2)
    ]
    command = await world.heard(tenant, "MuteAlerts")
    assert command.message.muted_by.endswith(f" of tenant {tenant}")
    fact = AlertsMuted.model_validate(command.message.model_dump())
    await world.voices.say("tracker", fact, causation_id=command.envelope.id)
    for answer in [await each for each in asking]:
        assert answer.status_code == 200, answer.text
        assert answer.json()["id"] == f"stall:{job_id}"
        assert answer.json()["until"] == int(until_then.timestamp())
        assert answer.json()["muted_by"] == command.message.muted_by
    assert world.ear.types(tenant).count("MuteAlerts") == before + 1
    listed = (await world.ask("GET", "/alerts/mutes", tenant=tenant)).json()["data"]
    assert [each["id"] for each in listed] == [f"stall:{job_id}"]

    removing = asyncio.create_task(world.ask("DELETE", f"/alerts/mutes/stall:{job_id}", tenant=tenant))
    command = await world.heard(tenant, "UnmuteAlerts")
    fact = AlertsUnmuted.model_validate(command.message.model_dump())
    await world.voices.say("tracker", fact, causation_id=command.envelope.id)
    assert (await removing).json()["deleted"] is True
    assert (await world.ask("GET", "/alerts/mutes", tenant=tenant)).json()["data"] == []
    events = (await world.ask("GET", f"/fine_tuning/jobs/{job_id}/events?limit=100", tenant=tenant)).json()
    words = [each["message"] for each in events["data"] if "muted" in each["message"]]
    assert [each.partition(" by ")[0] for each in words] == ["alert stall unmuted", "alert stall muted"]


async def test_what_is_muted_is_listed_with_who_muted_it_and_is_not_counted(world, tenant):
    job_id, other = await world.a_running_job(tenant), await world.a_running_job(tenant)
    await raised(world, tenant, job_id)
    await raised(world, tenant, other)
    assert await count_of(world, tenant) == "2"
    await muted(world, tenant, job_id=job_id)
    assert await count_of(world, tenant) == "1"
    shown = {each["job_id"]: each["mute"] for each in await open_alerts(world, tenant)}
    assert (shown[job_id]["muted_by"], shown[job_id]["until"], shown[other]) == (KEY, None, None)
    assert [each["job_id"] for each in await open_alerts(world, tenant, "&muted=false")] == [other]
    assert [each["job_id"] for each in await open_alerts(world, tenant, "&muted=true")] == [job_id]
    await muted(world, tenant)
    assert await count_of(world, tenant) == ""
    assert await open_alerts(world, tenant, "&muted=false") == []
    async with logged_in(world, tenant) as client:
        assert "Alerts that are open" not in words_of(await client.get("/"))


async def test_a_mute_that_has_ended_holds_back_nothing(world, tenant):
    job_id = await world.a_running_job(tenant)
    await raised(world, tenant, job_id)
    await muted(world, tenant, until=(utc_now() - timedelta(seconds=1)).isoformat())
    [shown] = await open_alerts(world, tenant)
    assert shown["mute"] is None
    assert (await world.ask("GET", "/alerts/mutes", tenant=tenant)).json()["data"] == []
    assert await count_of(world, tenant) == "1"


@pytest.mark.parametrize("action", ["pause", "stop"])
async def test_a_rule_that_stops_its_job_is_counted_all_the_same(world, tenant, action):
    job_id = await world.a_running_job(tenant)
    query = "UPDATE job SET spec = spec || jsonb_build_object('alerts', jsonb_build_object('stall', $2::text)) WHERE job_id = $1"
    await world.db.execute(query, job_id, action)
    await raised(world, tenant, job_id)
    await muted(world, tenant)
    [shown] = await open_alerts(world, tenant)
    assert (shown["action"], shown["mute"]) == (action, None)
    assert await count_of(world, tenant) == "1"
    async with logged_in(world, tenant) as client:
        assert f"{action}s the job: not muted" in words_of(await client.get("/alerts"))


async def test_endpoints_hear_of_alerts_and_of_none_that_was_raised_muted(world, tenant):
    types = ["retune.alert.raised", "retune.alert.cleared"]
    body = {"name": "alerts", "url": "https://example.com/x", "event_types": types}
    assert (await world.ask("POST", "/webhook_endpoints", tenant=tenant, json=body)).status_code == 200
    quiet, loud = await world.a_running_job(tenant), await world.a_running_job(tenant)
    for job_id, is_muted in ((quiet, True), (loud, False)):
        fact = await raised(world, tenant, job_id, is_muted=is_muted)
        fields = fact.model_dump(include={"job_id", "tenant", "attempt", "rule", "episode", "is_muted"})
        await world.voices.say("tracker", AlertCleared(**fields, step=11, message="step 11"))
    query = """
        SELECT count(*) = 2 FROM webhook_delivery JOIN webhook_endpoint USING (endpoint_id)
         WHERE tenant = $1 AND subject = $2 AND webhook_delivery.event_type = ANY ($3)"""
    await until(lambda: world.db.fetchval(query, tenant, loud, types), "both deliveries")
    assert not await world.db.fetchval(query.replace("= 2", "> 0"), tenant, quiet, types)
    alerts = {
        each["job_id"]: each["was_muted"]
        for each in (await world.ask("GET", "/alerts", tenant=tenant)).json()["data"]
    }
    assert alerts == {quiet: True, loud: False}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"rule": "noise"}, "rule"),
        ({"rule": "stall", "until": "soon"}, "until"),
        ({"rule": "stall", "until": "2027-03-01T12:00:00"}, "until"),
        ({"rule": "stall", "forever": True}, "forever"),
    ],
)
async def test_what_is_asked_wrongly_names_the_field(world, tenant, body, param):
    answer = await world.ask("POST", "/alerts/mutes", tenant=tenant, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_another_tenants_jobs_and_mutes_do_not_exist(world, tenant):
    owner = f"t-{mark()}"
    world.keys[owner] = await new_key(world, owner)
    job_id = await world.a_running_job(owner)
    await muted(world, owner, job_id=job_id, rule="plateau")
    answer = await world.ask("POST", "/alerts/mutes", tenant=tenant, json={"rule": "stall", "job_id": job_id})
    assert answer.status_code == 404
    assert (await world.ask("DELETE", f"/alerts/mutes/plateau:{job_id}", tenant=tenant)).status_code == 404
    assert (await world.ask("DELETE", "/alerts/mutes/nothing", tenant=tenant)).status_code == 404
    assert (await world.ask("GET", "/alerts/mutes", tenant=tenant)).json()["data"] == []
    fact = await raised(world, owner, job_id, rule=AlertRule.PLATEAU)
    number = await world.db.fetchval("SELECT number FROM alert WHERE job_id = $1", fact.job_id)
    async with logged_in(world, tenant) as client:
        assert (await client.get(f"/alerts/alert-{number}")).status_code == 404


async def test_the_page_mutes_and_unmutes_and_says_who_until_when(world, tenant):
    async with logged_in(world, tenant) as client:
        words = words_of(await client.get("/alerts"))
        assert "No alert: 0 in 24 h, 11 rules on" in words
        job_id = await world.a_running_job(tenant)
        await raised(world, tenant, job_id)
        page = await client.get("/alerts")
        assert "1 in 24 h, 11 rules on" in words_of(page)
        assert "1 min 01 s 40 s notify" in words_of(page)
        form = {"csrf": csrf_in(page.text), "rule": "stall", "job": job_id, "hours": "8"}
        asking = asyncio.create_task(client.post("/alerts/mutes", data=form))
        command = await world.heard(tenant, "MuteAlerts")
        left = command.message.until - utc_now()
        assert timedelta(hours=7, minutes=59) < left <= timedelta(hours=8)
        fact = AlertsMuted.model_validate(command.message.model_dump())
        await world.voices.say("tracker", fact, causation_id=command.envelope.id)
        assert (await asking).headers["location"] == "/alerts"
        words = words_of(await client.get("/alerts"))
        ends = f"{command.message.until:%Y-%m-%d %H:%M:%S} UTC"
        assert f"muted by {command.message.muted_by} until {ends}" in words
        assert (
            f"Muted Rule Of Until By What to do stall {job_id} {ends} {command.message.muted_by} Unmute"
            in words
        )
        number = await world.db.fetchval("SELECT number FROM alert WHERE job_id = $1", job_id)
        one = await client.get(f"/alerts/alert-{number}")
        assert f"no step for 61 s: {job_id}" in words_of(one)
        assert 'data-metric="tokens_per_second"' in one.text
        assert 'data-first="0" data-last="110"' in one.text
        form = {"csrf": csrf_in(page.text), "mute": f"stall:{job_id}"}
        asking = asyncio.create_task(client.post("/alerts/mutes/remove", data=form))
        command = await world.heard(tenant, "UnmuteAlerts")
        fact = AlertsUnmuted.model_validate(command.message.model_dump())
        await world.voices.say("tracker", fact, causation_id=command.envelope.id)
        await asking
        assert f"muted by {command.message.unmuted_by}" not in words_of(await client.get("/alerts"))
