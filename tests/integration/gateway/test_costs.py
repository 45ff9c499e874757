"""What attempts cost: for programs, as a file, and on the page; of one's own tenant alone."""

import csv
import io
import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest

from shared.clock import utc_now
from tests.integration.gateway.cost_rows import accrued, add_costs
from tests.integration.gateway.pages import HOSTILE, logged_in, logged_in_as_operator, words_of
from tests.integration.gateway.test_quotas import as_operator, decide
from tests.integration.gateway.world import World, mark

pytestmark = pytest.mark.stack

ADD_JOB = """
    INSERT INTO job (job_id, tenant, state, spec, created_at) VALUES ($1, $2, 'succeeded', $3::jsonb, now())"""


class Spent:
    """A tenant with a job of a hostile experiment on a spot pool and two others."""

    def __init__(self) -> None:
        self.tenant, self.month = f"t-{mark()}", f"{utc_now():%Y-%m}"
        self.job, self.other, self.third = (f"ftjob-{mark()}" for _ in range(3))


@pytest.fixture(scope="module")
async def spent(world: World) -> Spent:
    spent = Spent()
    tenant = spent.tenant
    world.keys[tenant] = (await as_operator(world, "POST", "", json={"name": tenant})).json()["api_key"]
    for job, metadata in ((spent.job, {"experiment": HOSTILE}), (spent.other, {"experiment": "=1+1"})):
        await world.db.execute(ADD_JOB, job, tenant, json.dumps({"metadata": metadata}))
    more = (
        accrued(spent.other, tenant, 1, "0.5", pool="h100"),
        accrued(spent.third, tenant, 1, "0.004", pool="h100"),
    )
    await add_costs(world, tenant, spent.job, *more)
    return spent


@pytest.fixture
async def person(world: World, spent: Spent) -> AsyncIterator[httpx.AsyncClient]:
    async with logged_in(world, spent.tenant) as client:
        yield client


async def costs(world: World, spent: Spent, query: str) -> dict:
    answer = await world.ask("GET", f"/costs?{query}", tenant=spent.tenant)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_are_added_up_by_what_is_asked_for(world, spent):
    by_job = await costs(world, spent, f"month={spent.month}")
    assert [each["name"] for each in by_job["groups"]] == [spent.job, spent.other, spent.third]
    assert by_job["groups"][0] == {
        "name": spent.job,
        "attempts": 2,
        "device_hours": 2.0,
        "cost_usd": "4.620000",
        "charged_usd": "3.120000",
        "free_usd": "1.500000",
        "spot_waste_usd": "1.500000",
        "usd_per_device_hour": "2.31",
    }
    assert (by_job["total"]["attempts"], by_job["total"]["cost_usd"]) == (4, "5.124000")
    by_pool = await costs(world, spent, "by=pool")
    assert [(each["name"], each["attempts"]) for each in by_pool["groups"]] == [("a100-spot", 2), ("h100", 2)]
    by_experiment = await costs(world, spent, "by=experiment")
    assert [each["name"] for each in by_experiment["groups"]] == [HOSTILE, "=1+1", None]
    assert [each["name"] for each in (await costs(world, spent, "by=day"))["groups"]] == [f"{spent.month}-01"]
    assert [each["name"] for each in (await costs(world, spent, "by=month"))["groups"]] == [spent.month]
    assert (await costs(world, spent, "by=sweep&month=2020-01"))["groups"] == []
    for query in ("by=tenant", "month=2026-13", "month=x", "colour=blue", "format=xml"):
        assert (await world.ask("GET", f"/costs?{query}", tenant=spent.tenant)).status_code == 400, query


@pytest.mark.parametrize("ask", ["format", "accept"])
async def test_are_a_file_in_which_no_name_is_a_formula(world, spent, ask):
    query, headers = ("&format=csv", {}) if ask == "format" else ("", {"accept": "text/csv"})
    answer = await world.ask("GET", f"/costs?by=experiment{query}", tenant=spent.tenant, headers=headers)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="costs-by-experiment.csv"'
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    assert [line["experiment"] for line in lines] == [HOSTILE, "'=1+1", ""]
    assert (lines[0]["charged_usd"], lines[0]["spot_waste_usd"]) == ("3.120000", "1.500000")


async def test_of_others_are_nobodys_business_but_the_operators(world, spent):
    assert (await world.ask("GET", "/costs", tenant="other")).json()["groups"] == []
    key = world.stack.service_env("gateway")["GATEWAY_ADMIN_KEY"]
    path = "/v1/admin/costs?by=tenant"
    assert (await world.http.get(path, headers={"authorization": "Bearer x"})).status_code == 401
    answer = (await world.http.get(path, headers={"authorization": f"Bearer {key}"})).json()
    assert [each["cost_usd"] for each in answer["groups"] if each["name"] == spent.tenant] == ["5.124000"]


async def test_the_operator_sees_what_all_tenants_cost(world, spent):
    async with logged_in_as_operator(world) as operator:
        page = await operator.get("/admin/costs")
        row = re.search(rf'<a href="/admin/tenants/{spent.tenant}">.*?</tr>', page.text, re.DOTALL)
        assert row is not None
        assert ["$3.62" in row[0], "$1.50" in row[0]] == [True, True]
        assert "Budget of this month" not in page.text
        by_job = await operator.get("/admin/costs?by=job")
        assert spent.job in by_job.text
        assert f'href="/jobs/{spent.job}"' not in by_job.text, (
            "a tenant's page, which this session does not open"
        )
        file = await operator.get("/admin/costs.csv")
        assert f"{spent.tenant},4," in file.text
        assert (await operator.get("/admin/costs?by=nothing")).status_code == 400


async def test_a_person_sees_the_days_the_groups_and_the_budget(world, spent, person):
    page = await person.get("/costs?by=experiment")
    words = words_of(page)
    assert HOSTILE not in page.text
    assert "$3.62 charged; the tenant has no limit" in words
    assert "$1.50" in words
    assert f"<title>{spent.month}-01: $3.62 charged, $1.50 not charged</title>" in page.text
    by_job = await person.get("/costs")
    assert f'href="/jobs/{spent.job}"' in by_job.text
    assert "under $0.01" in words_of(by_job)
    file = await person.get(f"/costs.csv?by=job&month={spent.month}")
    assert file.text.splitlines()[1].startswith(f"{spent.job},2,2.0,4.620000")
    assert "No attempt ended in 2020-01" in words_of(await person.get("/costs?month=2020-01"))
    assert (await person.get("/costs?month=nothing")).status_code == 400
    await decide(world, spent.tenant, cost_per_month=10)
    assert "$3.62 charged of $10.00; it begins again on" in words_of(await person.get("/costs"))
    async with logged_in(world, "other") as client:
        assert spent.job not in (await client.get("/costs")).text
