"""The stream of a page: what changed, each once, and from where the browser was."""

import json
import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import httpx
import pytest

from schemas.training import StepsRecorded, StepValidated
from tests.integration.gateway.alerting import clear, raise_alert
from tests.integration.gateway.pages import HOSTILE, HTML, heard, logged_in, lose_node, populate
from tests.integration.gateway.world import World, a_step, mark, new_key

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
async def person(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with logged_in(world) as client:
        yield client


async def part_of(lines: AsyncIterator[str], element: str) -> dict[str, str]:
    """The next part of this element; a page may have several."""
    while True:
        _, _, part = await heard(lines, "part")
        if part["id"] == element:
            return part


def marks_in(html: str) -> list[dict[str, Any]]:
    return json.loads(unescape(re.search(r"data-marks='([^']*)'", html)[1]))


class TestStreams:
    async def test_bring_what_changed_once(self, world, person):
        job = await world.a_running_job()
        path = f"/jobs/{job}/stream"
        async with person.stream("GET", path, params={"step": 10}) as events:
            assert events.headers["content-type"].startswith("text/event-stream")
            lines = events.aiter_lines()
            first, _, _ = await heard(lines, "ready")
            await world.db.execute("UPDATE job SET cost = 7.5 WHERE job_id = $1", job)
            while "$7.50" not in (part := (await heard(lines, "part"))[2])["html"]:
                pass
            assert part["id"] == "job-head"
            changed, _, _ = await heard(lines, "ping")
        assert first != changed
        async with person.stream("GET", path, headers={"last-event-id": changed}) as events:
            _, name, _ = await heard(events.aiter_lines(), "part", "ready")
        assert name == "ready"

    async def test_count_the_alerts_that_are_open(self, world, person):
        job = await world.a_running_job()
        async with person.stream("GET", f"/jobs/{job}/stream") as events:
            lines = events.aiter_lines()
            _, _, before = await heard(lines, "alerts")
            await raise_alert(world, job)
            while (present := (await heard(lines, "alerts"))[2]) <= before:
                pass
        assert (
            f'id="num-alerts" title="open alerts">{present}<'
            in (await person.get("/costs", headers=HTML)).text
        )

    async def test_of_curves_bring_new_steps(self, world, person):
        job = await world.a_running_job()
        async with person.stream("GET", f"/jobs/{job}/stream", params={"step": 9}) as events:
            _, _, points = await heard(events.aiter_lines(), "steps")
        assert [(point["step"], point["loss"], point["attempt"]) for point in points] == [(10, 2.0, 1)]

    async def test_of_curves_say_which_step_was_measured_after_it_was_done(self, world, person):
        job = await world.a_running_job()
        of_attempt = {"job_id": job, "tenant": "demo", "attempt": 1}
        async with person.stream("GET", f"/jobs/{job}/stream", params={"step": 10}) as events:
            lines = events.aiter_lines()
            await world.record(StepsRecorded(**of_attempt, steps=(a_step(11),)))
            await heard(lines, "steps")
            measured = StepValidated(step=11, metrics={"valid_loss": 1.5, "full_valid_loss": 1.5})
            await world.record(StepsRecorded(**of_attempt, steps=(a_step(12),), validations=(measured,)))
            _, _, points = await heard(lines, "steps")
            last, _, step = await heard(lines, "validated")
        assert ([point["step"] for point in points], step) == ([12], 11)
        async with person.stream("GET", f"/jobs/{job}/stream", headers={"last-event-id": last}) as events:
            _, name, _ = await heard(events.aiter_lines(), "validated", "ready")
        assert name == "ready"

    async def test_of_curves_mark_alerts_as_they_are_raised_and_cleared(self, world, person):
        job = await world.a_running_job()
        path = f"/jobs/{job}/stream"
        async with person.stream("GET", path, params={"step": 10}) as events:
            lines = events.aiter_lines()
            assert marks_in((await part_of(lines, "job-marks"))["html"]) == []
            raised = await raise_alert(world, job, step=8, message=f"loss 9.5 {HOSTILE}")
            part = await part_of(lines, "job-marks")
            assert "1 open alert, 0 cleared alerts" in part["html"]
            assert "<script>" not in part["html"]
            [mark] = marks_in(part["html"])
            assert (mark["kind"], mark["step"], mark["metrics"]) == ("open", 8, ["loss"])
            assert mark["text"] == f"open alert, loss spike at step 8: loss 9.5 {HOSTILE}"
            page = await person.get(f"/jobs/{job}", headers=HTML)
            assert marks_in(page.text) == [mark], "a page that is loaded now has the same"
            await clear(world, raised, step=10)
            [mark] = marks_in((await part_of(lines, "job-marks"))["html"])
            assert (mark["kind"], mark["step"]) == ("cleared", 8)
            last, _, _ = await heard(lines, "ping")
        async with person.stream("GET", path, headers={"last-event-id": last}) as events:
            _, name, _ = await heard(events.aiter_lines(), "part", "ready")
        assert name == "ready"

    async def test_of_an_alert_mark_it_as_cleared(self, world, person):
        raised = await raise_alert(world, await world.a_running_job())
        number = await world.db.fetchval("SELECT number FROM alert WHERE job_id = $1", raised.job_id)
        path = f"/alerts/alert-{number}"
        assert [mark["kind"] for mark in marks_in((await person.get(path, headers=HTML)).text)] == ["open"]
        async with person.stream("GET", f"{path}/stream") as events:
            lines = events.aiter_lines()
            await part_of(lines, "alert")
            await clear(world, raised, step=10)
            [mark] = marks_in((await part_of(lines, "alert"))["html"])
        assert mark["kind"] == "cleared"

    async def test_of_a_timeline_bring_new_events(self, world, person):
        job = await world.a_running_job()
        async with person.stream("GET", f"/jobs/{job}/stream", params={"tab": "timeline"}) as events:
            lines = events.aiter_lines()
            await heard(lines, "ready")
            await world.db.execute(
                """INSERT INTO job_event (job_id, tenant, event_id, type, level, message, data, created_at)
                   VALUES ($1, 'demo', 'e', 'JobWarned', 'warn', $2, '{}', now())""",
                job, HOSTILE,
            )  # fmt: skip
            _, _, news = await heard(lines, "events")
        assert news["count"] == 1
        assert "<script>" not in news["html"]
        assert HOSTILE in unescape(news["html"])

    async def test_of_a_timeline_bring_attempts_and_the_steps_that_are_done_again(self, world, person):
        job = await world.a_running_job()
        await world.record(
            StepsRecorded(job_id=job, tenant="demo", attempt=1, steps=(a_step(11), a_step(12)))
        )
        async with person.stream("GET", f"/jobs/{job}/stream", params={"tab": "timeline"}) as events:
            lines = events.aiter_lines()
            await heard(lines, "ready")
            await lose_node(world, job)
            while "11 to 12" not in (part := (await heard(lines, "part"))[2])["html"]:
                pass
            assert part["id"] == "job-attempts"
            hatched = re.compile(r'<rect class="again" x="([^"]+)%" width="([^"]+)%"')
            left, width = map(float, hatched.search(part["html"]).groups())
            assert left + width == pytest.approx(100, abs=0.1), "all of its training, so far"
            steps = (a_step(11), a_step(12), a_step(13))
            await world.record(StepsRecorded(job_id=job, tenant="demo", attempt=2, steps=steps))
            while (left, width) == (ends := tuple(map(float, hatched.search(part["html"]).groups()))):
                while (part := (await heard(lines, "part"))[2])["id"] != "job-attempts":
                    pass
            assert sum(ends) < 100
        page = await person.get(f"/jobs/{job}/timeline")
        assert '<div id="job-attempts">' in page.text
        assert "11 to 12" in page.text

    async def test_of_curves_bring_attempts_when_one_ends(self, world, person):
        job = await world.a_running_job()
        page = await person.get(f"/jobs/{job}")
        assert '<div id="job-attempts">' in page.text
        async with person.stream("GET", f"/jobs/{job}/stream", params={"tab": "curves"}) as events:
            lines = events.aiter_lines()
            await heard(lines, "ready")
            await lose_node(world, job)
            while (part := (await heard(lines, "part"))[2])["id"] != "job-attempts":
                pass
            while "queued" not in part["html"]:
                part = (await heard(lines, "part"))[2]

    async def test_of_a_list_bring_rows_and_count_new_jobs(self, world, person):
        job = await world.a_running_job()
        page = await person.get("/jobs")
        stream = unescape(re.search(r'data-stream="([^"]+)"', page.text)[1])
        async with person.stream("GET", stream) as events:
            lines = events.aiter_lines()
            await heard(lines, "ready")
            await world.db.execute("UPDATE job SET cost = 8.25 WHERE job_id = $1", job)
            while "$8.25" not in (part := (await heard(lines, "part"))[2])["html"]:
                pass
            assert part["id"] == f"job-{job}"
            await world.a_running_job()
            while (await heard(lines, "newer"))[2] < 1:
                pass
        async with person.stream("GET", stream) as events:
            assert (await heard(events.aiter_lines(), "newer"))[2] == 1

    async def test_of_other_pages_bring_what_changed(self, world):
        tenant = f"t-{mark()}"
        world.keys[tenant] = await new_key(world, tenant)
        shown = await populate(world, tenant)
        version = shown.served.model_id
        cost = """
            INSERT INTO attempt_cost (job_id, attempt, tenant, pool, capacity_type, cost, charged, node_seconds,
                                      device_seconds, ended_at)
            VALUES ($1, 77, $2, 'cpu', 'spot', 1234.5, 1234.5, 60, 60, now())"""
        raised = """
            INSERT INTO alert (job_id, attempt, rule, episode, tenant, step, message, raised_at)
            VALUES ($1, 1, 'loss_spike', 1, $2, 10, 'loss 9.5', now())"""
        pages = [
            ("/models", "list", "UPDATE model SET stage = 'archived' WHERE model_id = $1", (version,), "archived</span>"),
            (f"/models/{version}", "model", "UPDATE route SET state = 'failed' WHERE model_id = $1", (version,), "failed"),
            ("/deployments", "list", "UPDATE route SET reason = $2 WHERE model_id = $1", (version, HOSTILE), HOSTILE),
            ("/datasets", "list", "UPDATE dataset SET state = 'deleted' WHERE dataset_id = $1", (shown.dataset,), "deleted</span>"),
            ("/alerts", "alerts", raised, (shown.running, tenant), "loss spike"),
            ("/sweeps", "list", "UPDATE sweep SET state = 'cancelled' WHERE sweep_id = $1", (shown.sweep,), "cancelled</span>"),
            ("/costs", "costs", cost, (shown.running, tenant), "$1,234.50"),
            ("/webhooks", "list", "UPDATE webhook_endpoint SET is_enabled = false WHERE endpoint_id = $1", (shown.webhook,), "switched off"),
        ]  # fmt: skip
        async with logged_in(world, tenant) as client:
            for path, element, change, arguments, expected in pages:
                page = await client.get(path)
                stream = unescape(re.search(r'<body[^>]*data-stream="([^"]+)"', page.text)[1])
                async with client.stream("GET", stream) as events:
                    lines = events.aiter_lines()
                    before = await part_of(lines, element)
                    assert expected not in unescape(before["html"]), path
                    await world.db.execute(change, *arguments)
                    after = await part_of(lines, element)
                assert f'<div id="{element}"' in page.text
                assert expected in unescape(after["html"]), path
                assert "<script>" not in after["html"]

    async def test_of_compared_jobs_name_those_that_went_on(self, world, person):
        first, second = await world.a_running_job(), await world.a_running_job()
        page = await person.get("/compare", params={"runs": f"{first},{second}"})
        stream = unescape(re.search(r'<body[^>]*data-stream="([^"]+)"', page.text)[1])
        async with person.stream("GET", stream) as events:
            lines = events.aiter_lines()
            _, name, _ = await heard(lines, "part", "ready")
            assert name == "ready", "the page shows it already"
            await world.db.execute("UPDATE job SET cost = 9.75, spec = spec || $2 WHERE job_id = $1",
                                   second, json.dumps({"suffix": HOSTILE[:40]}))  # fmt: skip
            _, _, part = await heard(lines, "part")
            changed, _, went_on = await heard(lines, "redraw")
        assert part["id"] == "compared-jobs"
        assert "$9.75" in part["html"]
        assert "<script>" not in part["html"]
        assert went_on == [second]
        async with person.stream("GET", stream, headers={"last-event-id": changed}) as events:
            _, name, _ = await heard(events.aiter_lines(), "part", "redraw", "ready")
        assert name == "ready"

    async def test_of_compared_jobs_are_ones_own(self, world, person):
        other = await world.a_running_job("other")
        answer = await person.get("/compare/stream", params={"runs": other})
        assert answer.status_code == 404

    async def test_of_what_happens_now_bring_a_new_job(self, world, person):
        async with person.stream("GET", "/now/stream") as events:
            lines = events.aiter_lines()
            await heard(lines, "ready")
            job = await world.a_running_job()
            while job not in (await heard(lines, "part"))[2]["html"]:
                pass
