"""What the page shows of jobs that wait, and how one is made on it."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from html import unescape

import httpx
import pytest

from schemas.base import BundleRef
from schemas.checkpoint import CheckpointOverdue
from schemas.evaluation import EvalStarted
from schemas.job import JobCancelled
from schemas.specification import Method, Recipe
from schemas.training import CheckpointWritten
from tests.builders import a_sha
from tests.integration.gateway.cost_rows import add_costs
from tests.integration.gateway.pages import (
    HOSTILE,
    a_base_with_a_shape,
    add_waiting_jobs,
    csrf_in,
    heard,
    logged_in,
    words_of,
)
from tests.integration.gateway.world import MAX_UPLOAD_BYTES, ROW, World, mark, new_key
from tests.parquet import parquet_of
from tests.waiting import until

pytestmark = pytest.mark.stack


async def test_what_waits_begins_with_the_head_of_the_queue(world):
    tenant = f"t-{mark()}"
    world.keys[tenant] = await new_key(world, tenant)
    await add_waiting_jobs(world, tenant, 30)
    async with logged_in(world, tenant) as client:
        answer = await client.get("/")
    assert [*map(int, re.findall(r'title="waits-(\d+)"', answer.text))] == [*range(1, 21)]
    assert "The first 20 of 31 are shown." in words_of(answer)


@pytest.fixture(scope="module")
async def person(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with logged_in(world) as client:
        yield client


@pytest.fixture(scope="module")
async def base(world: World) -> str:
    """Whose layers take no adapter."""
    fact = await a_base_with_a_shape(world, refused_methods={Method.LORA: f"no layer takes one {HOSTILE}"})
    return fact.name


async def hidden(client: httpx.AsyncClient) -> dict[str, str]:
    """What a form carries by itself."""
    html = (await client.get("/jobs/new")).text
    return {"csrf": csrf_in(html), "once": re.search(r'name="once" value="([0-9a-f]{32})"', html)[1]}


def field(html: str, name: str) -> str:
    """What the page says of a field, with what is wrong with it."""
    part = re.search(rf'id="error-{name}" data-part>(.*?)</div>', html, re.DOTALL)[1]
    return unescape(re.sub(r"<[^>]*>", "", part))


class TestUploads:
    async def test_are_stored_as_those_of_programs(self, world, person):
        form = await hidden(person)
        answer = await person.post(
            "/jobs/new/files",
            data={"csrf": form["csrf"], "purpose": "fine-tune"},
            files={"file": (f"{HOSTILE}.jsonl", ROW)},
        )
        assert answer.status_code == 303, answer.text
        page = await person.get(answer.headers["location"])
        file_id = answer.headers["location"].rpartition("=")[2]
        assert f'value="{file_id}" selected' in page.text
        assert "<script>alert" not in page.text
        known = (await world.ask("GET", f"/files/{file_id}")).json()
        assert (known["bytes"], known["purpose"]) == (len(ROW), "fine-tune")
        assert known["filename"] in unescape(page.text)

    async def test_of_scripts_are_answered_as_json(self, world, person):
        headers = {"x-csrf-token": (await hidden(person))["csrf"], "accept": "application/json"}
        body = {"data": {"purpose": "fine-tune"}, "headers": headers}
        stored = await person.post("/jobs/new/files", files={"file": ("rows.jsonl", ROW)}, **body)
        assert stored.json()["id"].startswith("file-")
        refused = await person.post("/jobs/new/files", files={"file": ("rows.jsonl", b"no rows")}, **body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "file")
        parquet = {"file": ("rows.parquet", parquet_of([json.loads(ROW)]))}
        stored = await person.post("/jobs/new/files", files=parquet, **body)
        known = (await world.ask("GET", f"/files/{stored.json()['id']}")).json()
        assert (known["filename"], known["retune"]["format"]) == ("rows.parquet", "chat")

    @pytest.mark.parametrize(
        ("csrf", "headers"), [("", {}), ("0" * 64, {}), (None, {"sec-fetch-site": "cross-site"})]
    )
    async def test_of_others_are_refused(self, world, person, csrf, headers):
        own = (await hidden(person))["csrf"]
        before = await world.db.fetchval("SELECT count(*) FROM file")
        answer = await person.post(
            "/jobs/new/files",
            data={"csrf": own if csrf is None else csrf, "purpose": "fine-tune"},
            files={"file": ("rows.jsonl", ROW)},
            headers=headers,
        )
        assert answer.status_code == 403
        assert await world.db.fetchval("SELECT count(*) FROM file") == before

    async def test_have_the_limit_of_uploads_and_no_other_form_has(self, person):
        csrf = (await hidden(person))["csrf"]
        for size, status in ((MAX_UPLOAD_BYTES + 200_000, 413), (MAX_UPLOAD_BYTES // 2, 400)):
            answer = await person.post(
                "/jobs/new/files",
                data={"csrf": csrf, "purpose": "fine-tune"},
                files={"file": ("rows.jsonl", b"x" * size)},
            )
            assert answer.status_code == status


class TestNewJobs:
    async def test_say_what_is_known_before_the_button(self, world, person, base):
        file = await world.upload(name="chats.jsonl")
        form = await hidden(person) | {"training_file": file["id"], "model": base, "method": "sft"}
        answer = await person.post("/jobs/new/check", data=form)
        words = words_of(answer)
        assert "can be submitted Nothing that is known keeps this job from its end." in words
        assert "rows 1 in chats.jsonl, chat" in words
        assert "GiB of each device" in words
        assert f"retune jobs submit \\ {file['id']} \\ --model {base}" in words
        assert re.search(r'value="lora" disabled', answer.text)
        assert f"no layer takes one {HOSTILE}" in words
        assert re.search(r'value="dpo" disabled', answer.text), "the rows are no pairs"
        assert "it expects rows of preference, and the file has rows of chat" in words
        assert form["once"] in answer.text

    @pytest.mark.parametrize(
        ("changes", "name", "expected"),
        [
            ({"retune-recipe-num_epochs": "none"}, "retune-recipe-num_epochs", "found 'none'"),
            ({"suffix": HOSTILE}, "suffix", "found '<script>"),
            ({"method": "lora"}, "method", "no layer takes one"),
            ({"model": "nobody"}, "model", "base model 'nobody' is not registered"),
            ({"training_file": "file-nobody"}, "training_file", "does not exist"),
            ({"options": "{"}, "options", "not JSON"),
            ({"retune-recipe-batch_size": "1", "retune-resources-devices_per_node": "2"}, "retune-recipe-batch_size", "without work"),
        ],
    )  # fmt: skip
    async def test_that_are_refused_say_so_at_the_field(self, world, person, base, changes, name, expected):
        file = await world.upload()
        form = await hidden(person) | {"training_file": file["id"], "model": base, "method": "sft"} | changes
        for path, status in (("/jobs/new/check", 200), ("/jobs/new", 400)):
            answer = await person.post(path, data=form)
            assert answer.status_code == status
            assert expected in field(answer.text, name)
            assert 'aria-invalid="true"' in answer.text or name == "method"
            assert "cannot be submitted" in words_of(answer)
            for each, value in changes.items():
                assert value in unescape(answer.text), f"{each} is kept"
            assert "<script>alert" not in answer.text
            assert 'id="as-command" data-part></div>' in answer.text, "there is nothing to copy"

    async def test_are_made_once_however_often_the_form_is_sent(self, world, person, base):
        file = await world.upload()
        form = await hidden(person) | {"training_file": file["id"], "model": base, "method": "sft"}
        first, second = await asyncio.gather(*(person.post("/jobs/new", data=form) for _ in range(2)))
        assert first.status_code == second.status_code == 303
        assert first.headers["location"] == second.headers["location"]
        job_id = first.headers["location"].rpartition("/")[2]
        sent = await world.heard(job_id, "SubmitJob")
        assert (sent.message.tenant, sent.message.spec.base_model) == ("demo", base)
        assert sent.message.spec.recipe.method == "sft"
        assert (await world.heard(sent.message.dataset_id, "SubmitDataset")).message.spec.method == "sft"
        changed = await person.post("/jobs/new", data=form | {"suffix": "other"})
        assert changed.status_code == 303
        assert changed.headers["location"] != first.headers["location"]

    async def test_are_filled_in_from_another_job(self, world, person, base):
        file = await world.upload()
        form = await hidden(person) | {
            "training_file": file["id"], "model": base, "method": "sft", "suffix": "first",
            "retune-recipe-num_epochs": "2", "retune-policy-max_seq_length": "64", "retune-max_cost": "2.50",
            "options": '{"gate": {"holdout": {"min_items": 120}}, "allow_ungated": true}',
        }  # fmt: skip
        form |= {"holdout_file": (await world.upload(content=ROW * 120))["id"]}
        answer = await person.post("/jobs/new", data=form)
        assert answer.status_code == 303, words_of(answer)
        job_id = answer.headers["location"].rpartition("/")[2]
        assert str((await world.heard(job_id, "SubmitJob")).message.spec.max_cost) == "2.50"
        page = await person.get(f"/jobs/new?from={job_id}")
        for name, value in form.items():
            if name not in ("csrf", "once", "options", "training_file", "holdout_file", "model", "method"):
                assert f'name="{name}" value="{value}"' in page.text
        assert f'value="{file["id"]}" selected' in page.text
        assert 'value="sft" checked' in page.text
        assert '"min_items": 120' in unescape(page.text)
        assert "can be submitted" in words_of(page)
        async with logged_in(world, "other") as client:
            assert (await client.get(f"/jobs/new?from={job_id}")).status_code == 404
            assert (await client.get(f"/jobs/new?training_file={file['id']}&base={base}")).status_code == 200

    async def test_that_the_tenant_may_not_have_are_not_offered(self, world):
        tenant = f"t-{mark()}"
        world.keys[tenant] = await new_key(world, tenant)
        await world.db.execute("""UPDATE tenant SET quotas = '{"open_jobs": 0}' WHERE name = $1""", tenant)
        async with logged_in(world, tenant) as client:
            page = await client.get("/jobs/new")
        assert "0 jobs have not ended, which is all that the tenant may have" in words_of(page)
        assert re.search(r"disabled>Submit the job", page.text)


class TestComparisons:
    async def test_have_the_baseline_first_and_what_differs_alone(self, world, person):
        first = await world.a_running_job()
        second = await world.a_running_job(recipe=Recipe(lora={"rank": 8}))
        page = await person.get(f"/compare?runs={first},{second}&base={second}")
        words = words_of(page)
        assert f'data-runs="{second},{first}"' in page.text
        assert "recipe.lora.rank 1 8 2 32" in words, "each value after the number of its job"
        assert "baseline" in words
        added = await person.get(f"/compare?runs={first}&add={second}")
        assert f'data-runs="{first},{second}"' in added.text
        assert "Choose two to 8 jobs" in words_of(await person.get("/compare"))

    async def test_are_of_eight_at_most_and_ones_own(self, world, person):
        job_id = await world.a_running_job("other")
        absent = f"{job_id[:-3]}zzz"
        answers = [await person.get(f"/compare?runs={each}") for each in (job_id, absent)]
        assert [answer.status_code for answer in answers] == [404, 404]
        many = ",".join(f"ftjob-{each}" for each in range(9))
        refused = await person.get(f"/compare?runs={many}")
        assert (refused.status_code, "runs: found 9, expected at most 8" in words_of(refused)) == (400, True)


async def test_sample_files_are_downloaded_and_can_be_uploaded(person):
    html = (await person.get("/jobs/new")).text
    links = re.findall(r'href="(/jobs/new/sample-[^"]+)" download', html)
    assert len(links) == 4
    for link in links:
        answer = await person.get(link)
        assert answer.headers["content-disposition"] == f'attachment; filename="{link.rpartition("/")[2]}"'
        form = {"csrf": csrf_in(html), "purpose": "fine-tune"}
        sent = await person.post("/jobs/new/files", data=form, files={"file": ("rows.jsonl", answer.content)})
        assert sent.status_code == 303, words_of(sent)
    assert (await person.get("/jobs/new/sample-other.jsonl")).status_code == 400


class TestCheckpoints:
    async def test_say_their_size_and_what_cannot_be_done_with_them_yet(self, world, person):
        job_id = await world.a_running_job()
        words = words_of(await person.get(f"/jobs/{job_id}/checkpoints"))
        assert "10 B" in words
        assert "the job is not over: it can be evaluated then, or cancel the job first" in words
        assert "no model version yet" in words
        assert "evaluate it first" not in words
        await world.db.execute(
            "DELETE FROM job_event WHERE job_id = $1 AND type = 'CheckpointVerified'", job_id
        )
        words = words_of(await person.get(f"/jobs/{job_id}/checkpoints"))
        assert "unknown" in words
        assert "10 B" not in words

    async def test_are_evaluated_as_programs_do_it_and_then_deployed(self, world, person):
        job_id = await world.a_running_job()
        name, path = f"ftckpt-{job_id}-1-10", f"/jobs/{job_id}/checkpoints"
        form = {"csrf": csrf_in((await person.get(path)).text)}
        answer = await person.post(f"{path}/{name}/evaluate", data=form)
        assert (answer.status_code, "expected one that is over" in answer.text) == (400, True)
        await world.voices.say(
            "scheduler",
            JobCancelled(job_id=job_id, tenant="demo", reason="user", artifact=None, last_step=10),
        )
        over = "SELECT finished_at IS NOT NULL FROM job WHERE job_id = $1"
        await until(lambda: world.db.fetchval(over, job_id), "the end of the job")
        answer = await person.get(path)
        assert "Deploy</button></form>" not in answer.text
        assert "no model version yet: evaluate it first" in words_of(answer)

        asking = asyncio.create_task(person.post(f"{path}/{name}/evaluate", data=form))
        command = (await world.heard(job_id, "RegisterArtifact")).message
        version = await world.a_version(job_id=job_id, bundle=command.bundle)
        sent = await world.heard(version.model_id, "ReevaluateModel")
        about = version.model_dump(include={"model_id", "tenant", "job_id", "digest", "base_sha"})
        started = EvalStarted(**about, eval_id=f"eval-{mark()}", number=2)
        await world.voices.say("evaluator", started, causation_id=sent.envelope.id)
        answer = await asking
        assert (answer.status_code, answer.headers["location"]) == (303, f"/models/{version.model_id}/gate")

        html = (await person.get(path)).text
        assert f'action="/models/{version.model_id}/deploy"' in html
        assert "no model version yet" not in html

    async def test_begin_a_job_like_theirs(self, world, person):
        job_id = await world.a_running_job()
        html = (await person.get(f"/jobs/{job_id}/checkpoints")).text
        link = unescape(re.search(r'href="(/jobs/new\?from=[^"]+&amp;base=[^"]+)">Continue', html)[1])
        html = (await person.get(link)).text
        assert f'<option value="ftckpt-{job_id}-1-10" selected>' in html
        assert "file-train.jsonl" in field(html, "training_file"), "the request was checked"
        assert field(html, "model") == ""


class TestTabsOfAJob:
    async def test_cost_has_each_attempt_its_waste_and_the_limit(self, world, person):
        job_id = await world.a_running_job()
        words = words_of(await person.get(f"/jobs/{job_id}/cost"))
        assert "the job has no limit of its own" in words
        assert "No attempt has ended." in words
        await world.db.execute(
            """UPDATE job SET spec = spec || '{"max_cost": "8.00"}' WHERE job_id = $1""", job_id
        )
        await add_costs(world, "demo", job_id)
        words = words_of(await person.get(f"/jobs/{job_id}/cost"))
        assert "$3.12 of $8.00, the job's limit" in words
        assert "9 a100-spot spot 1.00 $3.12 $0.00 – –" in words
        assert "8 a100-spot spot 1.00 $0.00 $1.50 $1.50 preempted" in words
        assert "all 2 2.00 $3.12 $1.50 $1.50" in words

    async def test_events_are_the_jobs_own_with_links_to_their_records(self, world, person):
        job_id, other = await world.a_running_job(), await world.a_running_job()
        answer = await person.get(f"/jobs/{job_id}/events")
        record = re.search(r'href="(/events/[0-9]+)" title="the record of CheckpointVerified"', answer.text)
        assert other not in answer.text
        assert job_id in words_of(await person.get(record[1]))
        assert "No older ones" in words_of(await person.get(f"/jobs/{job_id}/events?before=1"))

    async def test_the_timeline_is_filtered_by_several_types_also_live(self, world, person):
        job_id = await world.a_running_job()
        path = f"/jobs/{job_id}/timeline?type=JobQueued&type=CheckpointWritten"
        html = (await person.get(path)).text
        shown = re.findall(r'<td class="optional muted">(\w+)</td>', html)
        assert {*shown} == {"JobQueued", "CheckpointWritten"}
        checked = re.findall(r'value="(\w+)" autocomplete="off" checked', html)
        assert {*checked} == {*shown}
        assert "None is of this type" in words_of(await person.get(f"/jobs/{job_id}/timeline?type=NodeLost"))
        stream = unescape(re.search(r'data-stream="([^"]+)"', html)[1])
        async with person.stream("GET", stream) as answer:
            lines = answer.aiter_lines()
            await heard(lines, "ready")
            bundle = BundleRef(attempt=1, step=20, manifest_sha256=a_sha(job_id))
            of_job = {"job_id": job_id, "tenant": "demo"}
            written = CheckpointWritten(**of_job, attempt=1, bundle=bundle, kind="periodic", metrics={})
            await world.voices.say(
                "checkpoint_watcher",
                CheckpointOverdue(**of_job, attempt=1, last_step=11, last_written_at=None),
            )
            await world.voices.say("trainer_agent", written)
            _, _, data = await heard(lines, "events")
        assert "checkpoint written: step 20" in data["html"]
        assert "CheckpointOverdue" not in data["html"]

    async def test_the_events_of_a_running_job_are_live(self, world, person):
        job_id = await world.a_running_job()
        stream = f"/jobs/{job_id}/stream?tab=events"
        async with person.stream("GET", stream) as answer:
            lines = answer.aiter_lines()
            await heard(lines, "ready")
            fact = CheckpointOverdue(
                job_id=job_id, tenant="demo", attempt=1, last_step=11, last_written_at=None
            )
            await world.voices.say("checkpoint_watcher", fact)
            _, _, data = await heard(lines, "events")
        assert 'title="the record of CheckpointOverdue"' in data["html"]
