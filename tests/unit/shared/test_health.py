"""A process says that it is unhealthy, and why, with status 503."""

import importlib
import json
from collections.abc import Mapping
from contextlib import nullcontext

import pytest

from deploy.placeholders import placeholder_settings
from shared.health import MAX_AWAY_SECONDS, MAX_OUTBOX_AGE_SECONDS, RETRY_AFTER, Probe, Route, asgi_app
from shared.settings import Address


async def ask(probe: Probe, path: str) -> tuple[int, dict]:
    answer = await exchange(probe, path)
    return answer[0]["status"], json.loads(answer[1]["body"])


async def exchange(probe: Probe, path: str) -> list[dict]:
    messages = []

    async def send(message: dict) -> None:
        messages.append(message)

    async def receive() -> dict:
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    await asgi_app(probe, lifespan=nullcontext)(scope, receive, send)
    return messages


@pytest.mark.parametrize(
    ("probe", "problems"),
    [
        (Probe(ready=True, outbox_age_seconds=MAX_OUTBOX_AGE_SECONDS), []),
        (Probe(ready=True, parked_blocking=3), []),
        (Probe(), ["not ready yet"]),
        (Probe(ready=True, missing_topics=["job.events"]), ["topic job.events is missing"]),
        (Probe(ready=True, postgres_away_seconds=lambda: MAX_AWAY_SECONDS), []),
        (
            Probe(ready=True, postgres_away_seconds=lambda: 61.2),
            ["Postgres has been unavailable for 61 s"],
        ),
        (Probe(ready=True, outbox_age_seconds=61.2), ["oldest event not in Kafka is 61 s old"]),
        (
            Probe(ready=True, stalled_topics=["job.events", "node.events"]),
            ["no progress on job.events for a minute", "no progress on node.events for a minute"],
        ),
    ],
)
async def test_health_is_what_the_probe_knows(probe, problems):
    status, body = await ask(probe, "/healthz")
    expected = {
        "healthy": not problems,
        "problems": problems,
        "parked_blocking": probe.parked_blocking,
    }
    assert (status, body) == (503 if problems else 200, expected)


async def test_a_process_that_cannot_work_is_alive_and_says_when_to_ask_again():
    assert await ask(Probe(), "/livez") == (200, {"alive": True})
    headers = dict((await exchange(Probe(), "/healthz"))[0]["headers"])
    assert headers[b"retry-after"] == RETRY_AFTER["retry-after"].encode()


async def test_another_path_is_answered_with_those_that_exist():
    status, body = await ask(Probe(ready=True), "/health")
    assert (status, body) == (404, {"error": "no route /health; there are /livez, /healthz and /metrics"})


async def post(*chunks: bytes, method: str = "POST") -> tuple[int, bytes]:
    """Send a body in chunks to a route that answers with what it was given, and takes four bytes."""
    sent = []
    waiting = [
        {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}
        for number, chunk in enumerate(chunks, start=1)
    ]

    async def receive() -> dict:
        return waiting.pop(0)

    async def send(message: dict) -> None:
        sent.append(message)

    async def answer(headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        return 201, headers["name"].encode() + body

    scope = {"type": "http", "method": method, "path": "/ask", "headers": [(b"name", b"value")]}
    app = asgi_app(Probe(), lifespan=nullcontext, routes={"/ask": Route(answer, max_bytes=4)})
    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]


async def test_a_route_is_given_the_whole_body():
    assert await post(b"ab", b"", b"cd") == (201, b"valueabcd")


async def test_no_more_of_a_body_is_read_than_a_route_takes():
    status, body = await post(b"abc", b"de", b"never read")
    assert (status, json.loads(body)) == (413, {"error": "more than 4 bytes"})


DOORS = {
    "trainer_agent": ["/v1/object-requests", "/v1/directives"],
    "serving_controller": ["/v1/replica-nodes", "/v1/replica-objects"],
    "evaluator": ["/v1/scoring-nodes", "/v1/scoring-objects"],
}
"""All that a node reaches of each service."""
OWN_PORT, NODES_PORT = 8000, 8001
PATHS = (
    "/livez",
    "/healthz",
    "/metrics",
    "/metrics/",
    "/nothing",
    *(path for each in DOORS.values() for path in each),
)


async def status(app, path: str, *, port: int) -> int:
    sent = []

    async def receive() -> dict:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    await app({**scope, "server": ("10.0.0.3", port)}, receive, send)
    return sent[0]["status"]


def routes_of(name: str) -> Mapping[str, Route]:
    """Routes of the service as it is wired where its work is on nodes."""
    settings = placeholder_settings(importlib.import_module(f"services.{name}.settings").Settings)
    on_nodes = settings.model_copy(update={"on_nodes": True, "pool": "far"})
    return importlib.import_module(f"services.{name}.app").build(on_nodes)._routes


@pytest.mark.parametrize("name", DOORS)
async def test_a_listener_for_nodes_answers_what_nodes_ask_for_and_nothing_else(name):
    routes = routes_of(name)
    app = asgi_app(
        Probe(ready=True), lifespan=nullcontext, routes=routes, nodes=Address("10.0.0.3", NODES_PORT)
    )
    statuses = {path: await status(app, path, port=NODES_PORT) for path in PATHS}
    assert [path for path, code in statuses.items() if code != 404] == DOORS[name]
    assert {statuses[path] for path in DOORS[name]} == {400}, "no request of a node"
    own = {path: await status(app, path, port=OWN_PORT) for path in PATHS}
    assert {path for path, code in own.items() if code == 404} == {"/nothing"} | {
        path for path in PATHS if path.startswith("/v1/") and path not in DOORS[name]
    }


async def test_a_service_without_such_a_listener_has_one_that_answers_all():
    app = asgi_app(Probe(ready=True), lifespan=nullcontext)
    assert await status(app, "/livez", port=NODES_PORT) == 200


async def test_a_route_answers_posts_alone():
    assert (await post(b"", method="GET"))[0] == 405
