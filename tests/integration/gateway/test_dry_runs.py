"""A dry run is answered as the request itself would be, and leaves nothing behind."""

from typing import Any

import pytest

from tests.integration.gateway.world import World, mark, new_key

pytestmark = pytest.mark.stack

LEFT = {
    "job": "SELECT count(*) FROM job WHERE tenant = $1",
    "sweep": "SELECT count(*) FROM sweep WHERE tenant = $1",
    "dataset": "SELECT count(*) FROM dataset WHERE tenant = $1",
    "commands": "SELECT count(*) FROM outbox WHERE convert_from(value, 'UTF8')::jsonb ->> 'tenant' = $1 AND topic LIKE '%.commands'",
    "commands of the day": "SELECT count(*) FROM commands_of_day WHERE tenant = $1",
    "key": "SELECT count(*) FROM idempotency WHERE tenant = $1",
}


@pytest.fixture
async def tenant(world: World) -> str:
    tenant = f"t-{mark()}"
    world.keys[tenant] = await new_key(world, tenant)
    return tenant


async def left_by(world: World, tenant: str) -> dict[str, int]:
    return {what: await world.db.fetchval(query, tenant) for what, query in LEFT.items()}


async def a_job_body(world: World, tenant: str) -> dict[str, Any]:
    return {"model": world.base_name, "training_file": (await world.upload(tenant))["id"]}


async def test_of_a_job(world: World, tenant: str):
    body = await a_job_body(world, tenant)
    before = await left_by(world, tenant)
    key = {"idempotency-key": mark()}
    dry = await world.ask("POST", "/fine_tuning/jobs?dry_run=true", tenant=tenant, json=body, headers=key)
    assert dry.status_code == 200, dry.text
    assert await left_by(world, tenant) == before
    real = await world.ask("POST", "/fine_tuning/jobs", tenant=tenant, json=body, headers=key)
    assert without_ids(dry.json()) == without_ids(real.json())
    after = await left_by(world, tenant)
    assert {what for what in LEFT if after[what] > before[what]} == LEFT.keys() - {"sweep"}
    missing = await world.ask("GET", f"/fine_tuning/jobs/{dry.json()['id']}", tenant=tenant)
    assert missing.status_code == 404


async def test_of_a_sweep(world: World, tenant: str):
    job = await a_job_body(world, tenant)
    job |= {"validation_file": (await world.upload(tenant))["id"], "retune": {"allow_ungated": True}}
    body = {"job": job, "parameters": {"learning_rate": {"choices": [1e-4, 2e-4]}}, "num_trials": 2}
    before = await left_by(world, tenant)
    dry = await world.ask("POST", "/sweeps?dry_run=true", tenant=tenant, json=body)
    assert dry.status_code == 200, dry.text
    assert await left_by(world, tenant) == before
    real = await world.ask("POST", "/sweeps", tenant=tenant, json=body)
    assert without_ids(dry.json()) == without_ids(real.json())
    assert (await left_by(world, tenant))["sweep"] == before["sweep"] + 1


async def test_is_refused_as_the_request_would_be(world: World, tenant: str):
    body = await a_job_body(world, tenant)
    for changes in (
        {"training_file": "file-none"},
        {"model": "none"},
        {"retune": {"recipe": {"learning_rate": -1}}},
    ):
        answers = [
            await world.ask("POST", f"/fine_tuning/jobs{query}", tenant=tenant, json=body | changes)
            for query in ("", "?dry_run=true")
        ]
        assert answers[0].status_code in (400, 404, 422)
        assert answers[0].status_code == answers[1].status_code
        assert answers[0].json() == answers[1].json()
    quotas = """UPDATE tenant SET quotas = '{"open_jobs": 0}' WHERE name = $1"""
    await world.db.execute(quotas, tenant)
    refused = await world.ask("POST", "/fine_tuning/jobs?dry_run=true", tenant=tenant, json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (429, "open_jobs")


def without_ids(answer: Any) -> Any:
    """Without what is another one in each request: ids that were drawn for it, and times."""
    if isinstance(answer, dict):
        drawn = ("id", "dataset_id", "created_at")
        return {name: without_ids(value) for name, value in answer.items() if name not in drawn}
    return [without_ids(each) for each in answer] if isinstance(answer, list) else answer
