"""What a node reaches in S3 with its own key, and what nobody reaches: nothing changes that is not its own."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.local.environment import nodes_listener
from deploy.local.state import LOOPBACK
from schemas import directives, layout
from schemas.job import JobScheduled
from schemas.node import NodesReleased
from schemas.object_requests import (
    MAX_BODY_BYTES,
    ROUTE,
    ObjectAnswers,
    ObjectRequest,
    ObjectRequests,
    PresignedRequest,
)
from tests.integration.attempts import Attempts
from tests.integration.nodes import attempts
from tests.integration.signed_requests import STRANGER, ask_signed
from tests.node_keys import signer_of
from tests.waiting import until

__all__ = ["attempts"]

pytestmark = pytest.mark.stack


@dataclass
class Thief:
    """Has the key of a node, or none, and asks trainer_agent and S3 for what it likes."""

    attempts: Attempts
    http: httpx.AsyncClient

    async def ask(self, scheduled: JobScheduled, *requests: ObjectRequest, **how: Any) -> httpx.Response:
        return await ask_signed(self.http, ROUTE, ObjectRequests, scheduled, requests=requests, **how)

    async def given(self, scheduled: JobScheduled, request: ObjectRequest, **how: Any) -> PresignedRequest:
        answer = await self.ask(scheduled, request, **how)
        assert answer.status_code == 200, answer.text
        [answered] = ObjectAnswers.model_validate_json(answer.content).answers
        assert answered.request is not None, answered.refused
        return answered.request

    async def refused(self, scheduled: JobScheduled, request: ObjectRequest, **how: Any) -> str:
        """Return why, of a request that the node may not make, or of a node that is not answered."""
        answer = await self.ask(scheduled, request, **how)
        if answer.status_code == 200:
            [answered] = ObjectAnswers.model_validate_json(answer.content).answers
            assert answered.request is None, "it was signed"
            return answered.refused
        assert answer.status_code == 403
        return str(answer.json()["error"])

    async def send(self, request: PresignedRequest, body: bytes = b"") -> httpx.Response:
        return await self.http.request(request.method, request.url, headers=request.headers, content=body)

    async def put(self, scheduled: JobScheduled, key: str, data: bytes) -> int:
        return (await self.send(await self.given(scheduled, putting(key, data)), data)).status_code


def getting(key: str) -> ObjectRequest:
    return ObjectRequest(operation="get", key=key)


def putting(key: str, data: bytes) -> ObjectRequest:
    digest = hashlib.sha256(data).hexdigest()
    return ObjectRequest(operation="put", key=key, sha256=digest, size_bytes=len(data))


def released(scheduled: JobScheduled) -> NodesReleased:
    who = {"job_id": scheduled.job_id, "tenant": scheduled.tenant, "attempt": scheduled.attempt}
    return NodesReleased(**who, nodes=())


@pytest.fixture(scope="module")
async def thief(attempts: Attempts) -> AsyncIterator[Thief]:
    port = attempts.stack.state.port(nodes_listener("trainer_agent"))
    async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}") as http:
        yield Thief(attempts, http)


@pytest.fixture
async def running(attempts: Attempts, thief: Thief) -> JobScheduled:
    """An attempt with two nodes that may ask."""
    scheduled = await attempts.schedule(nodes=2)
    await attempts.provision(scheduled)
    await until_answered(thief, scheduled)
    return scheduled


async def until_answered(thief: Thief, scheduled: JobScheduled) -> None:
    async def is_answered() -> bool:
        answer = await thief.ask(scheduled, getting(layout.base_model(scheduled.base_sha)))
        return answer.status_code == 200 and b'"refused":""' in answer.content

    await until(is_answered, "the node is answered")


async def test_a_node_reads_its_inputs_and_writes_its_bundle_once(attempts, thief, running):
    dataset = layout.dataset(running.dataset.version)
    manifest = await thief.send(await thief.given(running, getting(dataset), node=1))
    assert manifest.content == await attempts.objects.get_bytes(dataset)
    bundle = layout.checkpoint(running.job_id, 1, 3)
    assert await thief.put(running, bundle, b"first") == 200
    assert await thief.put(running, bundle, b"other") == 412
    assert await attempts.objects.get_bytes(bundle) == b"first"


async def test_a_nodes_key_opens_nothing_of_others(attempts, thief, running):
    other = await attempts.schedule()
    await attempts.provision(other)
    secret = f"datasets/{uuid4().hex}/manifest.json"
    theirs = layout.checkpoint(other.job_id, 1, 3)
    own = layout.checkpoint(running.job_id, 1, 4)
    for key in (secret, theirs, own):
        await attempts.objects.put_bytes(key, key.encode())
    for request in (
        getting(secret),
        getting(theirs),
        putting(theirs, b"mine"),
        putting(layout.checkpoint(running.job_id, 2, 4), b"mine"),
        putting(layout.log(running.job_id, 1, 1, 0), b"mine"),
        ObjectRequest(operation="list", key="checkpoints/"),
        getting(f"checkpoints/{running.job_id}/../{other.job_id}/x"),
    ):
        assert request.key in await thief.refused(running, request)
    answer = await thief.ask(running, getting(secret), getting(own))
    first, second = ObjectAnswers.model_validate_json(answer.content).answers
    assert (first.request, bool(second.request)) == (None, True), "each for itself"
    assert {key: await attempts.objects.get_bytes(key) for key in (secret, theirs, own)} == {
        key: key.encode() for key in (secret, theirs, own)
    }


async def test_what_was_signed_takes_nothing_away_and_copies_nothing(attempts, thief, running):
    own = layout.checkpoint(running.job_id, 1, 5)
    secret = f"datasets/{uuid4().hex}/manifest.json"
    await attempts.objects.put_bytes(secret, b"secret")
    assert await thief.put(running, own, b"mine") == 200
    reading = await thief.given(running, getting(own))
    assert (await thief.http.delete(reading.url)).status_code == 403
    writing = await thief.given(running, putting(layout.checkpoint(running.job_id, 1, 6), b""))
    source = {"x-amz-copy-source": f"/{attempts.stack.s3_bucket}/{secret}"}
    copied = await thief.http.put(writing.url, headers=writing.headers | source)
    assert copied.status_code == 403
    assert await attempts.objects.get_bytes(own) == b"mine"
    assert await attempts.objects.head(layout.checkpoint(running.job_id, 1, 6)) is None


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"signer": STRANGER}, "not signed with its key"),
        ({"node": 1, "signer": "node 0"}, "not signed with its key"),
        ({"alter": b" "}, "not signed with its key"),
        ({"at": -timedelta(minutes=5)}, "signed at"),
        ({"at": timedelta(minutes=5)}, "signed at"),
        ({"node": 2}, "not a node of the attempt"),
    ],
    ids=["a key of its own", "another node", "a changed body", "an old request", "a future one", "no node"],
)
async def test_who_is_not_the_node_is_given_nothing(thief, running, how, reason):
    if how.get("signer") == "node 0":
        how = how | {"signer": signer_of(running.job_id)}
    assert reason in await thief.refused(running, getting(layout.base_model(running.base_sha)), **how)


async def test_an_older_attempt_and_one_whose_nodes_are_gone_are_given_nothing(attempts, thief, running):
    reading = getting(layout.base_model(running.base_sha))
    newer = await attempts.schedule(running.job_id, attempt=2)
    await attempts.provision(newer)
    await until_answered(thief, newer)
    assert "attempt 2 is the newest" in await thief.refused(running, reading)
    await attempts.write("provisioner", released(newer))

    async def is_refused() -> bool:
        return (await thief.ask(newer, reading)).status_code == 403

    await until(is_refused, "its nodes are gone")
    assert "its nodes were released" in await thief.refused(newer, reading)


async def refusals(thief: Thief) -> dict[str, float]:
    """Number of refusals so far, by reason."""
    page = (await thief.http.get(thief.attempts.stack.url("trainer_agent", "/metrics"))).text
    return {
        sample.labels["reason"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "object_requests_refused_total"
    }


async def test_a_node_sees_no_metrics_and_no_health_where_it_asks(thief):
    paths = (ROUTE, directives.ROUTE, "/metrics", "/metrics/", "/healthz", "/livez", "/", "/nothing")
    statuses = {path: (await thief.http.get(path)).status_code for path in paths}
    assert statuses == dict.fromkeys(paths, 404) | {ROUTE: 405, directives.ROUTE: 405}
    by_another_name = await thief.http.get("/metrics", headers={"host": f"{LOOPBACK}:8000"})
    there = f"{ROUTE} and {directives.ROUTE}"
    assert by_another_name.json() == {"error": f"no route /metrics; there are {there}"}


async def test_what_is_refused_is_counted_by_its_reason(thief, running):
    own = getting(layout.base_model(running.base_sha))
    before = await refusals(thief)
    await thief.given(running, own)
    await thief.refused(running, own, signer=STRANGER)
    await thief.refused(running, getting(layout.base_model("f" * 64)))
    await thief.http.post(ROUTE, content=b"{}")
    after = await refusals(thief)
    more = {reason: count - before.get(reason, 0.0) for reason, count in after.items()}
    assert {reason: count for reason, count in more.items() if count} == {
        "unsigned": 1,
        "forbidden": 1,
        "unreadable": 1,
    }


async def test_what_is_no_request_is_answered_with_what_is_wrong(thief, running):
    nothing = await thief.http.post(ROUTE, content=b"{}")
    assert (nothing.status_code, nothing.json()["error"]) == (400, "job_id: Field required")
    assert (await thief.http.post(ROUTE, content=b"x" * (MAX_BODY_BYTES + 1))).status_code == 413
    assert (await thief.http.get(ROUTE)).status_code == 405
    unknown = running.model_copy(update={"job_id": "ftjob-unknown"})
    answer = await thief.ask(unknown, getting("base-models/x"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
