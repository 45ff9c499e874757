"""A process says that it is unhealthy, and why, with status 503."""

import json
from contextlib import nullcontext

import pytest

from shared.health import MAX_OUTBOX_AGE_SECONDS, Probe, asgi_app


async def ask(probe: Probe, path: str) -> tuple[int, dict]:
    said = []

    async def send(message: dict) -> None:
        said.append(message)

    async def receive() -> dict:
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    await asgi_app(probe, lifespan=nullcontext)(scope, receive, send)
    return said[0]["status"], json.loads(said[1]["body"])


@pytest.mark.parametrize(
    ("probe", "problems"),
    [
        (Probe(ready=True, outbox_age_seconds=MAX_OUTBOX_AGE_SECONDS), []),
        (Probe(), ["not ready yet"]),
        (Probe(ready=True, outbox_age_seconds=61.2), ["oldest event not in Kafka is 61 s old"]),
        (
            Probe(ready=True, stalled_topics=["job.events", "node.events"]),
            ["no progress on job.events for a minute", "no progress on node.events for a minute"],
        ),
    ],
)
async def test_health_is_what_the_probe_knows(probe, problems):
    status, body = await ask(probe, "/healthz")
    assert (status, body) == (503 if problems else 200, {"healthy": not problems, "problems": problems})


async def test_another_path_is_told_which_there_are():
    status, body = await ask(Probe(ready=True), "/health")
    assert (status, body) == (404, {"error": "no route /health; there are /healthz and /metrics"})
