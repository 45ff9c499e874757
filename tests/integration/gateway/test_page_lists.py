"""What a list of the page shows of each row and in which order, and what may be done from it."""

import re
from collections.abc import AsyncIterator
from html import unescape

import httpx
import pytest

from services.gateway import job_readmodels
from services.gateway.job_readmodels import SAMPLES
from services.gateway.page import checkpoints, costs, models, sweeps
from shared.postgres.database import Database
from tests.integration.gateway.pages import csrf_in, logged_in, words_of
from tests.integration.gateway.sweep_rows import add_sweep
from tests.integration.gateway.world import World, mark, new_key

pytestmark = pytest.mark.stack

ADD_JOB = """
    INSERT INTO job (job_id, tenant, state, spec, created_at, num_steps, last_recorded, is_promoted, held_since,
                     estimated_times)
    VALUES ($1, $2, $3, jsonb_build_object('suffix', $4::text, 'recipe', jsonb_build_object('method', 'lora')),
            now() - $5 * interval '1 minute', 100, $6, $7, now() - $8 * interval '1 second', $9)"""
ADD_ALERT = """
    INSERT INTO alert (job_id, tenant, attempt, rule, episode, step, message, raised_at, cleared_at)
    VALUES ($1, $2, 1, 'stall', 1, 10, 'no step for 10 min', now(), CASE WHEN $3 THEN now() END)"""
ADD_STEPS = """
    INSERT INTO step (job_id, step, attempt, metrics)
    SELECT $1, step, 1, jsonb_build_object('loss', CASE WHEN step > $4 THEN 'NaN' ELSE (step % 2)::text END)
      FROM generate_series($2::int, $3::int) AS step"""
ADD_CHECKPOINTS = """
    INSERT INTO checkpoint (job_id, tenant, attempt, step, manifest_sha256, kind, metrics, state, created_at)
    SELECT $1, $2, 1, step, md5(step::text) || md5($1), 'periodic', '{"train_loss": 1.0}', 'verified', now()
      FROM generate_series(1, $3::int) AS step"""
ADD_COSTS = """
    INSERT INTO attempt_cost (job_id, attempt, tenant, pool, capacity_type, node_seconds, device_seconds, cost,
                              charged, ended_at)
    SELECT 'ftjob-cost-' || $1 || '-' || number, 1, $1, 'h100', 'spot', 60, 60, number, number, now()
      FROM generate_series(1, $2::int) AS number"""
ADD_VERSIONS = """
    INSERT INTO model
    SELECT copy.* FROM model, generate_series(1, $2::int) AS number,
           jsonb_populate_record(model, jsonb_build_object('model_id', $1 || '-' || number)) AS copy
     WHERE model.model_id = $1::text"""
TIMES = """[{"pool": "h100", "seconds": {"low": 60, "expected": 90, "high": 3600},
             "cost_usd": {"low": "1", "expected": "1", "high": "1"}, "attempts": 3, "alike": "pool", "error": null}]"""


async def new_tenant(world: World) -> str:
    name = f"t-{mark()}"
    world.keys[name] = await new_key(world, name)
    return name


@pytest.fixture(scope="module")
async def tenant(world: World) -> str:
    return await new_tenant(world)


@pytest.fixture(scope="module")
async def person(world: World, tenant: str) -> AsyncIterator[httpx.AsyncClient]:
    async with logged_in(world, tenant) as client:
        yield client


@pytest.fixture(scope="module")
async def database(world: World) -> AsyncIterator[Database]:
    database = Database(world.stack.postgres_dsn("gateway"), application="lists-test")
    await database.open()
    yield database
    await database.close()


async def add_job(
    world: World,
    tenant: str,
    state: str,
    name: str,
    *,
    age_minutes: int,
    last_step: int = 0,
    is_promoted: bool | None = None,
    held_seconds: float = 0.0,
) -> str:
    job_id = f"ftjob-{mark()}"
    values = (age_minutes, last_step, is_promoted, held_seconds, TIMES)
    await world.db.execute(ADD_JOB, job_id, tenant, state, name, *values)
    return job_id


@pytest.fixture(scope="module")
async def jobs(world: World, tenant: str) -> dict[str, str]:
    """Ids by name, the newest first."""
    added = {
        "waits": await add_job(world, tenant, "queued", "waits", age_minutes=0),
        "well": await add_job(world, tenant, "running", "well", age_minutes=1, held_seconds=100),
        "passed": await add_job(world, tenant, "succeeded", "passed", age_minutes=2, is_promoted=True),
        "late": await add_job(world, tenant, "running", "late", age_minutes=3, held_seconds=4000),
        "watched": await add_job(world, tenant, "running", "watched", age_minutes=4),
        "quiet": await add_job(world, tenant, "running", "quiet", age_minutes=5),
        "refused": await add_job(world, tenant, "succeeded", "refused", age_minutes=6, is_promoted=False),
        "judged": await add_job(world, tenant, "evaluating", "judged", age_minutes=7),
        "ended": await add_job(world, tenant, "cancelled", "ended", age_minutes=8),
        "broken": await add_job(world, tenant, "failed", "broken", age_minutes=9, last_step=80),
    }
    await world.db.execute(ADD_ALERT, added["watched"], tenant, False)
    await world.db.execute(ADD_ALERT, added["quiet"], tenant, True)
    await world.db.execute(ADD_STEPS, added["broken"], 1, 80, 70)
    return added


def names(answer: httpx.Response) -> list[str]:
    return re.findall(r'id="open-[^"]+" href="[^"]+" title="([^"]+)"', answer.text)


def row_of(answer: httpx.Response, job_id: str) -> str:
    return answer.text.partition(f'<tr id="job-{job_id}">')[2].partition("</tr>")[0]


class TestPages:
    """Of lists that have more than one page shows, each row once and in the order that is said."""

    @pytest.fixture(scope="class")
    @classmethod
    async def tenant(cls, world: World) -> str:
        """One whose other lists nobody looks at."""
        return await new_tenant(world)

    @pytest.fixture(scope="class")
    @classmethod
    async def person(cls, world: World, tenant: str) -> AsyncIterator[httpx.AsyncClient]:
        async with logged_in(world, tenant) as client:
            yield client

    async def test_of_checkpoints(self, world):
        job_id = await add_job(world, "demo", "succeeded", "many-checkpoints", age_minutes=60)
        await world.db.execute(ADD_CHECKPOINTS, job_id, "demo", checkpoints.ROWS + 3)
        path, steps = f"/jobs/{job_id}/checkpoints", []
        async with logged_in(world) as person:
            while path:
                answer = await person.get(path)
                steps += re.findall(rf'data-copy="ftckpt-{job_id}-1-(\d+)"', answer.text)
                assert "Newest first" in words_of(answer)
                following = re.search(r'href="([^"]+)" rel="next"', answer.text)
                path = following[1] if following else ""
            refused = await person.get(f"/jobs/{job_id}/checkpoints?after=ftckpt-other-1-1")
        assert [*map(int, steps)] == [*range(checkpoints.ROWS + 3, 0, -1)]
        assert refused.status_code == 400

    async def test_of_trials(self, world, tenant, person):
        sweep_id = await add_sweep(world, tenant, num_trials=sweeps.TRIALS + 5, state="succeeded")
        first = await person.get(f"/sweeps/{sweep_id}")
        words = words_of(first)
        assert "Trials running first, then those trained to their end by loss, the lowest first" in words
        assert f"1 to {sweeps.TRIALS} of {sweeps.TRIALS + 5} More trials" in words
        second = await person.get(f"/sweeps/{sweep_id}?begin={sweeps.TRIALS}")
        assert f"{sweeps.TRIALS + 1} to {sweeps.TRIALS + 5} of {sweeps.TRIALS + 5} First page" in words_of(
            second
        )
        assert "No more trials" in words_of(await person.get(f"/sweeps/{sweep_id}?begin=1000"))

    async def test_of_costs(self, world, tenant, person):
        many = costs.ROWS + 2
        await world.db.execute(ADD_COSTS, tenant, many)
        names: list[str] = []
        for begin in (0, costs.ROWS):
            answer = await person.get(f"/costs?begin={begin}")
            names += re.findall(r'href="/jobs/(ftjob-cost-[^"]+)"', answer.text)
        assert len(names) == len({*names}) == many
        assert names[0].endswith(f"-{many}"), "the most expensive is the first"
        assert "No more" in words_of(await person.get("/costs?begin=5000"))


class TestSearch:
    async def test_leads_to_the_only_object_whose_id_begins_so(self, world, tenant, person):
        dataset = await world.a_dataset(tenant)
        other = await world.a_dataset("demo")
        part = dataset[:-1]
        jumped = await person.get(f"/jobs?q={part}&go=true")
        assert (jumped.status_code, jumped.headers["location"]) == (303, f"/datasets/{dataset}")
        typed = await person.get(f"/jobs?q={part}", headers={"hx-request": "true"})
        assert "hx-redirect" not in typed.headers, "while somebody types, the page stays"
        assert f"Ids that begin so: {dataset}" in words_of(typed)
        sent = await person.get(f"/jobs?q={part}&sort=created&go=true", headers={"hx-request": "true"})
        assert sent.headers["hx-redirect"] == f"/datasets/{dataset}"
        foreign = await person.get(f"/jobs?q={other[:-1]}&go=true")
        assert (foreign.status_code, "Ids that begin so" in words_of(foreign)) == (200, False)

    async def test_lists_several(self, world, tenant, person):
        common = f"ds-{mark()}"
        datasets = [f"{common}-{number}" for number in (1, 2)]
        add = "INSERT INTO dataset (dataset_id, tenant, state) VALUES ($1, $2, 'validating')"
        await world.db.executemany(add, [(each, tenant) for each in datasets])
        answer = await person.get("/jobs?q=ds-&go=true", headers={"hx-request": "true"})
        assert answer.status_code == 200, "a kind is no prefix of an id"
        answer = await person.get(f"/jobs?q={common}&sort=created&go=true", headers={"hx-request": "true"})
        assert answer.headers["hx-push-url"] == f"/jobs?q={common}"
        assert all(f'href="/datasets/{each}"' in answer.text for each in datasets)


class TestJobs:
    async def test_are_worst_first_where_the_address_says_so(self, person, jobs):
        answer = await person.get("/jobs?sort=worst")
        worst = [
            "broken",
            "watched",
            "late",
            "refused",
            "waits",
            "well",
            "quiet",
            "judged",
            "passed",
            "ended",
        ]
        assert names(answer) == worst
        assert "10 jobs, worst first: failed, with open alerts, running late" in words_of(answer)
        assert 'value="worst" selected' in answer.text

    async def test_continue_after_a_job_in_that_order(self, person, jobs):
        answer = await person.get(f"/jobs?sort=worst&after={jobs['late']}")
        assert names(answer) == ["refused", "waits", "well", "quiet", "judged", "passed", "ended"]

    async def test_come_no_earlier_for_an_alert_whose_rule_is_muted(self, database, tenant, person, jobs):
        rule = await database.fetchval("SELECT rule FROM alert WHERE job_id = $1", jobs["watched"])
        mute = "INSERT INTO alert_mute (tenant, rule, job_id, muted_by, muted_at) VALUES ($1, $2, $3, 'key', now())"
        await database.execute(mute, tenant, rule, jobs["watched"])
        try:
            answer = await person.get("/jobs?sort=worst")
            assert names(answer)[:2] == ["broken", "late"]
            assert "open alert" not in row_of(answer, jobs["watched"])
        finally:
            await database.execute("DELETE FROM alert_mute WHERE tenant = $1", tenant)

    async def test_say_what_is_wrong_beside_their_state(self, person, jobs):
        answer = await person.get("/jobs")
        troubles = {name for name in jobs if "open alert" in row_of(answer, jobs[name])}
        assert troubles == {"watched"}
        assert {name for name in jobs if "running late" in row_of(answer, jobs[name])} == {"late"}
        assert 'title="it was estimated to take at most 1 h 00 min' in row_of(answer, jobs["late"])

    async def test_have_the_curve_of_their_loss(self, database, tenant, person, jobs):
        answer = await person.get("/jobs")
        assert {name for name in jobs if 'class="sparkline"' in row_of(answer, jobs[name])} == {"broken"}
        curves = await job_readmodels.find_sampled_curves(database, tenant, [*jobs.values()])
        [curve] = curves.values()
        assert curve.steps == [*range(4, 81, 4)]
        assert len(curve.steps) <= SAMPLES
        assert curve.values[0] == 0.5, "the mean of steps 1 to 4"
        assert str(curve.values[-1]) == "nan"

    async def test_are_cancelled_and_tried_again_from_the_list(self, person, jobs):
        answer = await person.get("/jobs")
        running, failed, evaluating = (row_of(answer, jobs[name]) for name in ("well", "broken", "judged"))
        assert f'<dialog id="ask-cancel-{jobs["well"]}"' in running
        assert "It ends before its first step" in running
        assert f'action="/jobs/{jobs["broken"]}/continue"' in failed
        assert f'action="/jobs/{jobs["broken"]}/retry"' in failed
        assert "<dialog" not in failed
        assert "the gate is running: it decides" in evaluating
        assert "disabled" in evaluating
        assert "<button" not in row_of(answer, jobs["passed"])

    async def test_are_cancelled_by_their_owner_alone(self, world, person, jobs):
        path = f"/jobs/{jobs['waits']}/cancel"
        async with logged_in(world) as other:
            csrf = csrf_in((await other.get("/jobs")).text)
            assert (await other.post(path, data={"csrf": csrf})).status_code == 404


class TestVersions:
    async def test_are_searched_by_a_part_of_a_name_an_id_or_a_stage(self, world):
        owner = await new_tenant(world)
        first, second = [await world.a_version(owner) for _ in range(2)]
        newest_first = [second.model_id, first.model_id]
        async with logged_in(world, owner) as person:
            for query, expected in (
                ("", newest_first),
                (f"q={first.full_name[-6:].upper()}", [first.model_id]),
                (f"q={second.job_id}", [second.model_id]),
                ("q=+STAGING+", newest_first),
                (f"q=staging&base={world.base_name}", newest_first),
                ("q=staging&base=another", []),
                ("q=100%25", []),
            ):
                assert versions_in(await person.get(f"/models?{query}")) == expected, query
            words = words_of(await person.get("/models?q=%3Cb%3E"))
            assert "No version fits <b> . Clear the search" in words
            await world.db.execute(ADD_VERSIONS, first.model_id, models.ROWS)
            page = await person.get(f"/models?q=staging&base={world.base_name}")
            assert len(versions_in(page)) == models.ROWS
            following = re.search(r'href="([^"]*)" rel="next"', page.text)
            assert following is not None
            older = await person.get(unescape(following[1]))
            assert len(versions_in(older)) == 2
            assert 'value="staging"' in older.text


def versions_in(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return re.findall(r'href="/models/(mv-[^/"]*)" title', answer.text)
