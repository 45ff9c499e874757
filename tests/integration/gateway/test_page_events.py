"""Events on the page: each with its record, found by type, subject and text, paged, live, and nobody else's."""

import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from schemas.job import JobFailed, JobRunning
from services.gateway import recent_events
from services.gateway.recent_events import EventFilter
from shared.clock import utc_now
from shared.messaging.retention import Pruning, prune
from shared.postgres.database import Database
from tests.integration.gateway.pages import HOSTILE, heard, logged_in, words_of
from tests.integration.gateway.world import World, mark, new_key
from tests.integration.voices import ear
from tests.waiting import until

pytestmark = pytest.mark.stack

ADD_MANY = """
    INSERT INTO recent_event (tenant, type, subject, level, message, topic, partition, record_offset, key, headers,
                              payload, sent_at, recorded_at)
    SELECT $1, 'JobRunning', 'ftjob-many', 'info', 'event ' || n, 'job.events', 0, n, 'ftjob-many', '[]', '{}', $3, $3
      FROM generate_series(1, $2) AS n"""


@pytest.fixture
async def tenant(world: World) -> str:
    tenant = f"t-{mark()}"
    world.keys[tenant] = await new_key(world, tenant)
    return tenant


@pytest.fixture
async def person(world: World, tenant: str) -> AsyncIterator[httpx.AsyncClient]:
    async with logged_in(world, tenant) as client:
        yield client


@pytest.fixture
async def database(world: World) -> AsyncIterator[Database]:
    database = Database(world.stack.postgres_dsn("gateway"), application="events-test")
    await database.open()
    yield database
    await database.close()


async def fail(world: World, tenant: str, job_id: str, message: str = "out of memory") -> None:
    fact = JobFailed(job_id=job_id, tenant=tenant, failure_class="oom", code="oom", message=message)
    await world.voices.say("scheduler", fact)


async def shown(world: World, person: httpx.AsyncClient, address: str, count: int) -> httpx.Response:
    """The list once it has so many rows."""

    async def has_rows() -> httpx.Response | None:
        answer = await person.get(address)
        return answer if answer.text.count('<tr id="event-') == count else None

    return await until(has_rows, f"{count} events at {address}")


async def test_nothing_has_happened_at_first(person):
    words = words_of(await person.get("/events"))
    assert "a job makes the first: retune jobs submit train.jsonl --model BASE" in words
    assert "Kept for 7 days, the newest 100,000 at most." in words


async def test_programs_list_what_the_page_lists_and_read_the_record(world, person, tenant):
    job_id = f"ftjob-{mark()}"
    for message in ("out of memory", HOSTILE, "out of disk"):
        await fail(world, tenant, job_id, message)
    await shown(world, person, "/events", 3)

    async def asked(path: str) -> dict[str, Any]:
        answer = await world.ask("GET", path, tenant=tenant)
        assert answer.status_code == 200, answer.text
        return answer.json()

    first = await asked(f"/events?subject={job_id}&type=JobFailed&limit=2")
    assert [each["message"] for each in first["data"]] == ["oom: out of disk", f"oom: {HOSTILE}"]
    assert (first["has_more"], first["last_id"]) == (True, first["data"][-1]["id"])
    rest = await asked(f"/events?after={first['last_id']}")
    assert ([each["message"] for each in rest["data"]], rest["has_more"]) == (["oom: out of memory"], False)
    assert [each["message"] for each in (await asked("/events?q=DISK"))["data"]] == ["oom: out of disk"]
    assert (await asked("/events?type=JobQueued"))["data"] == []
    event = await asked(f"/events/{rest['data'][0]['id']}")
    assert rest["data"][0].items() <= event.items()
    assert (event["topic"], event["key"], json.loads(event["payload"])["job_id"]) == (
        "job.events",
        job_id,
        job_id,
    )
    assert {"ce_type", "ce_id"} <= {name for name, _ in event["headers"]}
    for wrong in ("event-", "ftevent-1", "event-99999999999999999999", "event-x"):
        assert (await world.ask("GET", f"/events/{wrong}", tenant=tenant)).status_code == 404
        refused = await world.ask("GET", f"/events?after={wrong}", tenant=tenant)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after")


async def test_an_event_is_shown_with_its_record(world, person, tenant):
    job_id = f"ftjob-{mark()}"
    async with ear(world.stack, "job.events") as heard_there:
        await fail(world, tenant, job_id, HOSTILE)
        await heard_there.until(job_id, "JobFailed")
    [record] = [each.record for each in heard_there.heard[job_id]]
    page = await shown(world, person, "/events", 1)
    assert "<script>alert" not in page.text
    assert f"{job_id} job.events" in words_of(page)
    assert HOSTILE in words_of(page)
    assert f'href="/jobs/{job_id}"' in page.text
    path = re.search(r'href="(/events/\d+)"', page.text)[1]
    raw = await person.get(path)
    words = words_of(raw)
    assert f"topic job.events , partition {record.partition}, offset {record.offset}" in words
    for name, value in record.headers:
        assert f"{name} {value.decode()}" in words
    assert HOSTILE.replace('"', '\\"') in words
    assert "<script>alert" not in raw.text
    assert '"failure_class": "oom"' in words
    async with logged_in(world, "other") as client:
        assert (await client.get(path)).status_code == 404
        assert job_id not in (await client.get("/events")).text
        assert '<tr id="event-' not in (await client.get(f"/events?subject={job_id}")).text
    for absent in ("/events/0", f"/events/{2**70}", f"/events/{2**62}"):
        assert (await person.get(absent)).status_code == 404


async def test_events_are_found_by_type_subject_and_text(world, person, tenant):
    first, second = f"ftjob-{mark()}", f"ftjob-{mark()}"
    await world.voices.say("scheduler", JobRunning(job_id=first, tenant=tenant, attempt=1))
    await fail(world, tenant, first, "at step 100%")
    await fail(world, tenant, second, "at step 1000")
    await shown(world, person, "/events", 3)
    for query, subjects in {
        "type=JobRunning": [first],
        "type=JobFailed": [second, first],
        f"subject={second}": [second],
        f"type=JobRunning&subject={second}": [],
        "q=STEP": [second, first],
        "q=step 100%25": [first],
        f"q={first}": [first, first],
    }.items():
        answer = await person.get(f"/events?{query}")
        assert sorted(re.findall(r'href="/jobs/(ftjob-[^"]+)"', answer.text)) == sorted(subjects), query
    for query, words in {
        "": "3 events of the last hour, at most",
        "type=JobFailed": "2 events of the last hour, at most",
        f"type=JobFailed&subject={first}": "1 event of the last hour, at most 1 a minute",
    }.items():
        answer = await person.get(f"/events?{query}")
        assert words in words_of(answer)
        assert '<svg class="rate"' in answer.text
    assert '<svg class="rate"' not in (await person.get("/events?q=STEP")).text, "texts are not counted"
    assert "None fits. All events" in words_of(await person.get("/events?q=nowhere"))
    options = re.search(r'name="type">(.*?)</select>', (await person.get("/events")).text)[1]
    assert re.sub(r"<[^>]*>", " ", options).split() == ["all", "JobFailed", "JobRunning"]


async def test_pages_go_back_to_the_first_event(world, person, tenant):
    await world.db.execute(ADD_MANY, tenant, 120, utc_now())
    address, seen = "/events", []
    for count in (50, 50, 20):
        answer = await person.get(address)
        seen += re.findall(r"event (\d+)\s*</td>", answer.text)
        assert answer.text.count('<tr id="event-') == count
        older = re.search(
            r'<p class="row after"( hidden)?><a class="button" id="older" href="([^"]+)"', answer.text
        )
        address = older[2].replace("&amp;", "&")
    assert older[1] == " hidden"
    assert [*map(int, seen)] == [*range(120, 0, -1)]
    assert (await person.get("/events?before=x")).status_code == 400
    assert "No older ones. Newest" in words_of(await person.get("/events?before=1"))


async def test_a_text_is_looked_for_in_so_many_events_at_once(world, database, tenant, monkeypatch):
    await world.db.execute(ADD_MANY, tenant, 30, utc_now())
    monkeypatch.setattr(recent_events, "LOOKED_AT", 12)
    list_events, asked = recent_events.list_events, EventFilter(text="event 5")
    page = await list_events(database, tenant, asked, before=None, limit=3)
    assert page.rows == []
    page = await list_events(database, tenant, asked, before=page.older, limit=3)
    assert page.rows == []
    page = await list_events(database, tenant, asked, before=page.older, limit=3)
    assert ([row.message for row in page.rows], page.older) == (["event 5"], None)


class TestStreams:
    async def test_send_what_fits_once_and_continue_after_an_id(self, world, person, tenant):
        job_id = f"ftjob-{mark()}"
        page = await person.get("/events?type=JobFailed")
        address = re.search(r'data-stream="([^"]+)"', page.text)[1].replace("&amp;", "&")
        async with person.stream("GET", address, timeout=30) as answer:
            lines = answer.aiter_lines()
            await heard(lines, "ready")
            await world.voices.say("scheduler", JobRunning(job_id=job_id, tenant=tenant, attempt=1))
            await fail(world, tenant, job_id)
            await fail(world, "other", f"ftjob-{mark()}", "not ours")
            _, _, data = await heard(lines, "events")
            assert data["count"] == 1
            assert job_id in data["html"]
        await fail(world, tenant, f"ftjob-{mark()}", "later")
        await shown(world, person, "/events?type=JobFailed", 2)
        last = await world.db.fetchval("SELECT max(number) FROM recent_event WHERE tenant = $1", tenant)
        headers = {"last-event-id": str(last - 1)}
        async with person.stream(
            "GET", "/events/stream?type=JobFailed", headers=headers, timeout=30
        ) as answer:
            _, _, data = await heard(answer.aiter_lines(), "events")
        assert "later" in data["html"], "what was missed is sent"

    async def test_send_what_was_committed_after_a_greater_number(self, world, database, tenant):
        """A transaction takes its number before it commits; another one overtakes it."""
        await world.db.execute(ADD_MANY, tenant, 3, utc_now())
        numbers = [
            row["number"]
            for row in await world.db.fetch("SELECT number FROM recent_event WHERE tenant = $1", tenant)
        ]
        after = max(numbers)
        newer = recent_events.list_newer
        rows = await newer(database, tenant, EventFilter(), after=after, limit=10)
        assert sorted(row.number for row in rows) == numbers, "they may have come after the greatest"
        await world.db.execute(
            "UPDATE recent_event SET recorded_at = now() - interval '1 minute' WHERE tenant = $1", tenant
        )
        assert await newer(database, tenant, EventFilter(), after=after, limit=10) == []

    async def test_count_what_is_too_much(self, world, person, tenant):
        async with person.stream("GET", "/events/stream?last=0", timeout=30) as answer:
            lines = answer.aiter_lines()
            await heard(lines, "ready")
            await world.db.execute(ADD_MANY, tenant, 300, utc_now())
            assert (await heard(lines, "newer"))[2] == 201


async def test_old_events_go_and_those_beyond_the_newest(world, database, tenant):
    old, many = recent_events.PRUNED
    week = timedelta(days=7)
    count = "SELECT count(*) FROM recent_event WHERE tenant = $1"
    await world.db.execute(ADD_MANY, tenant, 10, utc_now())
    await prune(database, Pruning(many, week))
    await prune(database, Pruning(old, week))
    assert await world.db.fetchval(count, tenant) == 10
    await prune(database, Pruning(many.replace(str(recent_events.MOST_OF_A_TENANT), "8"), week))
    assert await world.db.fetchval(count, tenant) == 8
    await world.db.execute("UPDATE recent_event SET recorded_at = now() - interval '8 days'")
    await world.db.execute(ADD_MANY, tenant, 2, utc_now())
    await prune(database, Pruning(old, week))
    assert await world.db.fetchval("SELECT count(*) FROM recent_event") == 2
