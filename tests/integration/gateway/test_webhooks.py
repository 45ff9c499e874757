"""Webhooks from the fact to a receiver: in order for each job, at least once, as long as the receiver is away."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from schemas.job import JobPaused, JobRunning, PauseReason
from tests.documents import blocks
from tests.integration.gateway.world import ENV, World, mark, new_key
from tests.integration.kills import alive, killed_at, second_process
from tests.integration.receiver import NEVER, Receiver, receiving
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

RUNNING = "retune.job.running"
FORGED = {"webhook-id": "evt_1", "webhook-timestamp": "1", "webhook-signature": "v1,x"}


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


class Owner:
    """A tenant with endpoints at a receiver."""

    def __init__(self, world: World, tenant: str, receiver: Receiver) -> None:
        self.world = world
        self.tenant = tenant
        self.receiver = receiver
        self.client = world.client(tenant)

    async def endpoint(self, path: str, *ways: int, types: tuple[str, ...] = (RUNNING,)) -> Any:
        self.receiver.ways[path] = list(ways)
        return await self.client.webhooks.create(
            name="ours", url=self.receiver.url(path), event_types=list(types)
        )

    async def run(self, job_id: str, *attempts: int) -> None:
        """Let attempts of a job begin, each of which is an event."""
        facts = [JobRunning(job_id=job_id, tenant=self.tenant, attempt=attempt) for attempt in attempts]
        await self.world.voices.say("scheduler", *facts)

    async def run_once(self, job_id: str, attempt: int) -> None:
        """Let a job's only event come, and wait until the gateway has read it."""
        await self.run(job_id, attempt)
        await until(lambda: self.world.is_consumed("job.events", job_id, 1), f"attempt {attempt} of {job_id}")

    async def deliveries(self, endpoint: Any, query: str = "") -> list[dict[str, Any]]:
        path = f"/webhook_endpoints/{endpoint.id}/deliveries?limit=100{query}"
        answer = await self.world.ask("GET", path, tenant=self.tenant)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    async def until_delivered(self, endpoint: Any, count: int) -> list[dict[str, Any]]:
        async def are_there() -> Any:
            deliveries = await self.deliveries(endpoint, "&status=delivered")
            return deliveries if len(deliveries) >= count else None

        return await until(are_there, f"{count} deliveries to {endpoint.url}")

    async def state_of(self, endpoint: Any) -> dict[str, Any]:
        answer = await self.world.ask("GET", f"/webhook_endpoints/{endpoint.id}", tenant=self.tenant)
        return answer.json()["retune"]

    async def set_status(self, endpoint: Any, status: str) -> dict[str, Any]:
        body = {"retune": {"status": status}}
        path = f"/webhook_endpoints/{endpoint.id}"
        return (await self.world.ask("POST", path, tenant=self.tenant, json=body)).json()["retune"]


@pytest.fixture(scope="module")
async def tenant(world: World) -> str:
    tenant = f"t-{mark()}"
    world.keys[tenant] = await new_key(world, tenant)
    return tenant


@pytest.fixture
async def owner(world: World, tenant: str, receiver: Receiver) -> AsyncIterator[Owner]:
    owner = Owner(world, tenant, receiver)
    yield owner
    async for endpoint in owner.client.webhooks.list():
        await owner.client.webhooks.delete(endpoint.id)
    await owner.client.close()


def running(*attempts: int) -> list[str]:
    return [f"attempt {attempt} is training" for attempt in attempts]


async def test_events_of_a_job_come_in_their_order_signed_as_the_official_client_expects(owner):
    endpoint = await owner.endpoint("/a", types=(RUNNING, "fine_tuning.job.succeeded"))
    other = await owner.endpoint("/b", types=("retune.job.paused",))
    version = await owner.world.a_version(owner.tenant)
    job_id = version.job_id
    await owner.run(job_id, 1, 2, 3, 4)
    await owner.world.voices.say(
        "scheduler",
        JobPaused(job_id=job_id, tenant=owner.tenant, attempt=4, reason=next(iter(PauseReason)), resume=None),
        owner.world.succeeded(version),
    )
    requests = await owner.receiver.until("/a", 5)
    events = [request.unwrapped(endpoint.signing_secret) for request in requests]
    assert [request.message for request in requests[:4]] == running(1, 2, 3, 4)
    assert (events[4].type, events[4].data.id) == ("fine_tuning.job.succeeded", job_id)
    assert [event.id for event in events] == [request.id for request in requests]
    assert [request.event["type"] for request in await owner.receiver.until("/b", 1)] == ["retune.job.paused"]
    log = await owner.until_delivered(endpoint, 5)
    assert [each["event_id"] for each in log] == [request.id for request in requests][::-1]
    assert {(each["subject"], each["status_code"]) for each in log} == {(job_id, 200)}
    page = await owner.client.webhooks.list(limit=1)
    assert (page.data[0].id, page.has_more) == (other.id, True)
    assert owner.client.webhooks.event_types is not None
    assert RUNNING in (await owner.client.webhooks.event_types.list()).data


async def test_a_delivery_that_fails_holds_back_those_of_its_job_alone(owner):
    endpoint = await owner.endpoint("/a", 500, 503, 302, 200)
    slow, quick = f"ftjob-{mark()}", f"ftjob-{mark()}"
    await owner.run(slow, 1)
    await owner.receiver.until("/a", 1)
    await owner.run(slow, 2, 3)
    await owner.run(quick, 1, 2)
    await owner.until_delivered(endpoint, 5)
    requests = owner.receiver.requests["/a"]
    of_slow = [each for each in requests if each.event["data"]["job_id"] == slow]
    of_quick = [each for each in requests if each.event["data"]["job_id"] == quick]
    assert list(dict.fromkeys(each.message for each in of_slow)) == running(1, 2, 3)
    assert list(dict.fromkeys(each.message for each in of_quick)) == running(1, 2)
    assert len(requests) == 8
    assert len({each.id for each in requests}) == 5
    assert owner.receiver.requests["/elsewhere"] == []
    assert (await owner.state_of(endpoint))["failing_since"] is None


async def test_a_redirect_is_an_answer_like_any_other_and_is_not_followed(owner):
    endpoint = await owner.endpoint("/a", 302)
    await owner.run(f"ftjob-{mark()}", 1)
    await owner.receiver.until("/a", 2)

    async def is_recorded() -> Any:
        delivery = (await owner.deliveries(endpoint))[0]
        return delivery if delivery["attempts"] >= 2 else None

    delivery = await until(is_recorded, "two attempts")
    assert (delivery["status"], delivery["status_code"], delivery["next_attempt_at"] is None) == (
        "pending",
        302,
        False,
    )
    assert owner.receiver.requests["/elsewhere"] == []


async def test_an_endpoint_that_never_answers_leaves_the_others_alone(owner):
    hanging = await owner.endpoint("/hangs", NEVER)
    quick = await owner.endpoint("/quick")
    jobs = [f"ftjob-{mark()}" for _ in range(12)]
    for job_id in jobs:
        await owner.run(job_id, 1)
    await owner.until_delivered(quick, 12)
    assert {each["attempts"] for each in await owner.deliveries(hanging)} <= {0, 1}

    async def has_timed_out() -> Any:
        return [each for each in await owner.deliveries(hanging) if each["attempts"]]

    delivery = (await until(has_timed_out, "a time-out"))[0]
    assert (delivery["error"], delivery["status_code"]) == ("no answer within 5 s", None)


async def test_a_receiver_that_is_away_loses_nothing(owner):
    endpoint = await owner.endpoint("/a")
    await owner.receiver.stop()
    jobs = [f"ftjob-{mark()}" for _ in range(3)]
    for job_id in jobs:
        await owner.run(job_id, 1, 2)

    async def was_tried() -> bool:
        return any(each["attempts"] >= 2 for each in await owner.deliveries(endpoint))

    await until(was_tried, "two attempts")
    refused = next(each for each in await owner.deliveries(endpoint) if each["attempts"])
    assert refused["error"] == "the connection was refused"
    assert (await owner.state_of(endpoint))["failing_since"] is not None
    await owner.receiver.start()
    await owner.until_delivered(endpoint, 6)
    for job_id in jobs:
        of_job = [each for each in owner.receiver.requests["/a"] if each.event["data"]["id"] == job_id]
        assert [each.message for each in of_job] == running(1, 2)
    assert (await owner.state_of(endpoint))["failing_since"] is None


async def test_a_secret_is_rotated_with_both_valid_for_a_while(owner):
    endpoint = await owner.endpoint("/a")
    rotated = await owner.client.webhooks.rotate_secret(endpoint.id, keep_old_secret_active_for_24_hours=True)
    assert rotated.signing_secret != endpoint.signing_secret
    await owner.run(f"ftjob-{mark()}", 1)
    (request,) = await owner.receiver.until("/a", 1)
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    for secret in (endpoint.signing_secret, rotated.signing_secret):
        assert request.unwrapped(secret).id == request.id
    await owner.client.webhooks.rotate_secret(endpoint.id)
    assert (
        await owner.client.webhooks.test(endpoint.id, event_type="fine_tuning.job.failed")
    ).status_code == 200
    last = (await owner.receiver.until("/a", 2))[-1]
    assert len(last.headers["webhook-signature"].split(" ")) == 1
    with pytest.raises(openai.InvalidWebhookSignatureError):
        last.unwrapped(rotated.signing_secret)
    shown = await owner.client.webhooks.retrieve(endpoint.id)
    assert not hasattr(shown, "signing_secret")
    rows = await owner.world.db.fetch("SELECT webhook_endpoint::text AS text FROM webhook_endpoint")
    assert not any("whsec_" in row["text"] for row in rows)


async def test_a_test_says_what_the_endpoint_answered(owner):
    endpoint = await owner.endpoint("/a", 500)
    path = f"/webhook_endpoints/{endpoint.id}/test"
    answer = (await owner.world.ask("POST", path, tenant=owner.tenant)).json()
    assert (answer["event_type"], answer["status_code"]) == ("ping", 500)
    (request,) = owner.receiver.requests["/a"]
    assert request.unwrapped(endpoint.signing_secret).type == "ping"
    await owner.receiver.stop()
    answer = (await owner.world.ask("POST", path, tenant=owner.tenant)).json()["error"]
    assert (answer["code"], "refused" in answer["message"]) == ("webhook_not_answered", True)
    log = await owner.deliveries(endpoint)
    assert [(each["status"], each["event_type"]) for each in log] == [("failed", "ping")] * 2
    assert (await owner.state_of(endpoint))["failing_since"] is None


async def test_a_delivery_is_replayed_under_the_id_of_its_event(owner):
    endpoint = await owner.endpoint("/a")
    await owner.run(f"ftjob-{mark()}", 1)
    (first,) = await owner.until_delivered(endpoint, 1)
    path = f"/webhook_endpoints/{endpoint.id}/deliveries/{first['id']}/replay"
    again = (await owner.world.ask("POST", path, tenant=owner.tenant)).json()
    assert (again["replay_of"], again["event_id"]) == (first["id"], first["event_id"])
    one, two = await owner.receiver.until("/a", 2)
    assert (one.id, one.body) == (two.id, two.body)
    await owner.until_delivered(endpoint, 2)
    for missing, status in ((path.replace(first["id"], "whd_x"), 404), (path.replace("whe_", "whe_x"), 404)):
        assert (await owner.world.ask("POST", missing, tenant=owner.tenant)).status_code == status
    owner.receiver.ways["/a"] = [500]
    await owner.world.ask("POST", path, tenant=owner.tenant)
    (waiting,) = await owner.deliveries(endpoint, "&status=pending")
    answer = await owner.world.ask("POST", path.replace(first["id"], waiting["id"]), tenant=owner.tenant)
    assert answer.json()["error"]["code"] == "webhook_delivery_pending"


async def test_an_endpoint_that_took_nothing_for_three_days_is_switched_off_and_on_again(owner):
    endpoint = await owner.endpoint("/a", 500)
    await owner.run(f"ftjob-{mark()}", 1)
    await owner.receiver.until("/a", 1)
    await owner.run(f"ftjob-{mark()}", 2)
    await until(lambda: _is_failing(owner, endpoint), "a failing endpoint")
    await owner.world.db.execute(
        "UPDATE webhook_endpoint SET failing_since = now() - interval '73 hours' WHERE endpoint_id = $1",
        endpoint.id,
    )
    await owner.world.db.execute(
        """UPDATE webhook_delivery SET first_attempt_at = now() - interval '73 hours'
            WHERE endpoint_id = $1 AND body LIKE '%attempt 1 %'""",
        endpoint.id,
    )

    async def is_off() -> Any:
        state = await owner.state_of(endpoint)
        return state if state["status"] == "disabled" else None

    state = await until(is_off, "the end of the endpoint")
    assert "nothing was delivered since" in state["reason"]
    assert state["reason"].endswith("status 500")
    await owner.run_once(f"ftjob-{mark()}", 3)
    assert [each["status"] for each in await owner.deliveries(endpoint)] == ["pending", "failed"]
    owner.receiver.ways["/a"] = [200]
    assert await owner.set_status(endpoint, "enabled") == {
        "status": "enabled",
        "reason": "",
        "disabled_at": None,
        "failing_since": None,
        "old_secret_until": None,
    }
    (delivered,) = await owner.until_delivered(endpoint, 1)
    assert owner.receiver.requests["/a"][-1].message == "attempt 2 is training"
    assert delivered["status_code"] == 200


async def _is_failing(owner: Owner, endpoint: Any) -> bool:
    return (await owner.state_of(endpoint))["failing_since"] is not None


async def test_an_endpoint_that_is_gone_is_switched_off_at_once(owner):
    endpoint = await owner.endpoint("/a", 410)
    await owner.run(f"ftjob-{mark()}", 1)

    async def is_off() -> bool:
        return (await owner.state_of(endpoint))["reason"] == "the endpoint answered 410 Gone"

    await until(is_off, "the end of the endpoint")
    assert [each["status"] for each in await owner.deliveries(endpoint)] == ["failed"]


async def test_what_belongs_to_another_tenant_does_not_exist(owner):
    endpoint = await owner.endpoint("/a")
    await owner.client.webhooks.test(endpoint.id, event_type="fine_tuning.job.failed")
    (delivery,) = await owner.deliveries(endpoint)
    path = f"/webhook_endpoints/{endpoint.id}"
    requests = [
        ("GET", path, None),
        ("POST", path, {"url": "https://example.com"}),
        ("POST", f"{path}/rotate_secret", {}),
        ("POST", f"{path}/test", {}),
        ("GET", f"{path}/deliveries", None),
        ("POST", f"{path}/deliveries/{delivery['id']}/replay", {}),
        ("DELETE", path, None),
    ]
    for method, url, body in requests:
        answer = await owner.world.ask(method, url, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "webhook_endpoint_not_found"), (
            url
        )
    async with owner.world.client() as foreign:
        assert endpoint.id not in {each.id async for each in foreign.webhooks.list()}
    before = len(owner.receiver.requests["/a"])
    await owner.world.voices.say("scheduler", JobRunning(job_id=f"ftjob-{mark()}", tenant="demo", attempt=1))
    await owner.run(f"ftjob-{mark()}", 7)
    assert (await owner.receiver.until("/a", before + 1))[-1].message == "attempt 7 is training"
    assert len(owner.receiver.requests["/a"]) == before + 1


@pytest.mark.parametrize(
    "url",
    [
        *(
            "https://10.0.0.1/x",
            "https://169.254.169.254/latest",
            "https://[::1]/",
            "https://[::ffff:10.0.0.1]/",
        ),
        *("https://2130706433/", "https://0x7f.1/", "ftp://example.com/", "https://u:p@example.com/"),
    ],
)
async def test_an_address_of_a_private_network_is_refused(owner, url):
    with pytest.raises(openai.BadRequestError) as error:
        await owner.client.webhooks.create(name="x", url=url, event_types=["fine_tuning.job.failed"])
    assert error.value.param == "url"


async def test_endpoints_are_changed_counted_and_deleted(owner):
    endpoint = await owner.endpoint("/a", 500)
    await owner.run(f"ftjob-{mark()}", 1)
    await owner.receiver.until("/a", 1)
    moved = await owner.client.webhooks.update(endpoint.id, url=owner.receiver.url("/b"), name="theirs")
    assert (moved.name, moved.event_types) == ("theirs", [RUNNING])
    await owner.receiver.until("/b", 1)
    with pytest.raises(openai.BadRequestError) as error:
        await owner.client.webhooks.update(endpoint.id, event_types=["batch.completed"])
    assert error.value.param == "event_types.0"
    admin = {"authorization": f"Bearer {owner.world.stack.operator_env()['RETUNE_ADMIN_KEY']}"}
    path = f"/v1/admin/tenants/{owner.tenant}/quotas"
    await owner.world.http.put(path, json={"webhook_endpoints": 1}, headers=admin)
    with pytest.raises(openai.RateLimitError) as exceeded:
        await owner.endpoint("/c")
    assert exceeded.value.param == "webhook_endpoints"
    await owner.world.http.put(path, json={}, headers=admin)
    assert (await owner.client.webhooks.delete(endpoint.id)).deleted
    rows = await owner.world.db.fetchval(
        """SELECT (SELECT count(*) FROM webhook_delivery WHERE endpoint_id = $1)
                + (SELECT count(*) FROM webhook_queue WHERE endpoint_id = $1)""",
        endpoint.id,
    )
    assert rows == 0


async def test_the_receiver_of_the_guide_prints_what_comes(owner):
    port = owner.receiver.port
    await owner.receiver.stop()
    endpoint = await owner.endpoint("/hook", types=(RUNNING,))
    environment = os.environ | {"WEBHOOK_SECRET": endpoint.signing_secret, "PORT": str(port)}
    program = "\n".join(blocks("docs/guides/webhooks.md", "python"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), env=environment, stdout=PIPE, stderr=DEVNULL
    )
    try:
        job_id = f"ftjob-{mark()}"
        await owner.run(job_id, 1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await process.stdout.readline()).decode() == f"{RUNNING} {job_id}\n"
        assert (await owner.until_delivered(endpoint, 1))[0]["status_code"] == 204
        async with httpx.AsyncClient() as http:
            forged = await http.post(owner.receiver.url("/hook"), content="{}", headers=FORGED)
        assert forged.status_code == 400
    finally:
        process.kill()
        await process.wait()


@pytest.mark.crash_matrix
async def test_what_was_sent_and_not_recorded_is_sent_again_under_its_id(owner):
    endpoint = await owner.endpoint("/a")
    job_id = f"ftjob-{mark()}"
    stack = owner.world.stack
    async with killed_at(stack, "gateway", "webhook.sent", env=ENV):
        await stack.wait_healthy("gateway")
        await owner.run(job_id, 1, 2)
        await owner.receiver.until("/a", 1)
    await alive(stack, "gateway", env=ENV)
    await owner.until_delivered(endpoint, 2)
    requests = owner.receiver.requests["/a"]
    assert [each.message for each in requests] == running(1, 1, 2)
    assert len({each.id for each in requests}) == 2


async def test_two_gateways_send_each_delivery_once(owner):
    stack = owner.world.stack
    async with second_process(stack, "gateway", env=ENV) as second:
        await stack.wait_healthy(second)
        endpoints = [await owner.endpoint(path) for path in ("/a", "/b")]
        jobs = [f"ftjob-{mark()}" for _ in range(8)]
        await asyncio.gather(*(owner.run(job_id, 1, 2, 3) for job_id in jobs))
        for endpoint in endpoints:
            await owner.until_delivered(endpoint, 24)
    for path in ("/a", "/b"):
        requests = owner.receiver.requests[path]
        assert len(requests) == len({each.id for each in requests}) == 24
        for job_id in jobs:
            of_job = [each.message for each in requests if each.event["data"]["id"] == job_id]
            assert of_job == running(1, 2, 3)
