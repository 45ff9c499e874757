"""Postgres or Kafka is away: the gateway answers each request, the same process before, during and after."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from deploy.local.network import answers_ok
from tests.chaos.scale import note
from tests.integration.gateway.world import ROW, World
from tests.waiting import until

pytestmark = pytest.mark.stack

LISTS = [("GET", path) for path in ("/files", "/models", "/fine_tuning/jobs", "/quotas")]


@pytest.fixture
async def no_postgres(world) -> AsyncIterator[None]:
    """Killed, and down until the test has it started."""
    await world.db.close()
    await world.stack.kill("postgres")
    await world.stack.stop("postgres")
    yield
    if "postgres" not in world.stack._supervisor.names():
        await world.stack.start("postgres")
    await world.stack.wait_healthy("postgres")
    world.db = await asyncpg.connect(world.stack.postgres_dsn("gateway"))


async def test_the_database_dies_and_stays_away(world, no_postgres):
    process = the_process(world)
    for method, path in [*LISTS * 2, ("POST", "/fine_tuning/jobs"), ("POST", "/files")]:
        await is_told_when_to_come_back(world, method, path)
    await says_that_it_lives_and_is_not_ready(world)
    await world.stack.start("postgres")
    await until(lambda: is_well(world), "the gateway to be well again")
    await world.stack.wait_healthy("gateway")
    assert the_process(world) == process
    note("gateway without Postgres", answered=2 * len(LISTS) + 2)


async def test_the_database_is_away_when_the_process_starts(world, no_postgres):
    await world.stack.kill("gateway")
    await until(lambda: answers_ok(world.stack.state.port("gateway"), "/livez"), "HTTP")
    process = the_process(world)
    for method, path in LISTS:
        await is_told_when_to_come_back(world, method, path)
    await says_that_it_lives_and_is_not_ready(world)
    await world.stack.start("postgres")
    await until(lambda: is_well(world), "the gateway to be well")
    await world.stack.wait_healthy("gateway")
    assert the_process(world) == process


async def test_kafka_is_away(world):
    """Commands wait in the outbox, and whoever asked gets the present state."""
    job, file_id, process = await world.a_running_job(), (await world.upload())["id"], the_process(world)
    await world.stack.stop("kafka")
    try:
        body = {"model": world.base_name, "training_file": file_id}
        submitted = await world.ask("POST", "/fine_tuning/jobs", json=body)
        cancelled = await world.ask("POST", f"/fine_tuning/jobs/{job}/cancel")
        assert (submitted.status_code, cancelled.status_code) == (200, 200)
        assert cancelled.json()["status"] == "running"
        await world.upload(content=ROW * 3)
        for method, path in [*LISTS, ("GET", f"/fine_tuning/jobs/{job}/events")]:
            assert (await world.ask(method, path)).status_code == 200
        assert (await world.http.get("/livez")).status_code == 200
    finally:
        await world.stack.start("kafka")
        await world.stack.wait_healthy("kafka")
    await world.heard(submitted.json()["id"], "SubmitJob")
    await world.heard(job, "CancelJob")
    assert the_process(world) == process
    note("gateway without Kafka", answered=len(LISTS) + 4)


def the_process(world: World) -> tuple[int, int]:
    return world.stack.pid("gateway"), world.stack._supervisor.child("gateway").deaths


async def is_told_when_to_come_back(world: World, method: str, path: str) -> None:
    answer = await world.ask(method, path, **({"json": {}} if method == "POST" else {}))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable"), path
    assert int(answer.headers["retry-after"]) > 0


async def says_that_it_lives_and_is_not_ready(world: World) -> None:
    async def is_not_ready() -> bool:
        answer = await world.http.get("/healthz")
        return answer.status_code == 503 and int(answer.headers["retry-after"]) > 0

    await until(is_not_ready, "/healthz to say that Postgres is away")
    assert (await world.http.get("/livez")).status_code == 200


async def is_well(world: World) -> bool:
    """Until then it says when to ask again."""
    answer = await world.ask("GET", "/files")
    if answer.status_code == 200:
        return True
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
    assert int(answer.headers["retry-after"]) > 0
    return False
