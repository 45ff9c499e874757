"""Sweeps on the page: how one begins, what was tried, what was best, and their end."""

import asyncio
import json
import re
import tomllib
from collections.abc import AsyncIterator
from html import unescape

import httpx
import pytest

from tests.integration.gateway.pages import csrf_in, logged_in, words_of
from tests.integration.gateway.sweep_rows import add_sweep
from tests.integration.gateway.world import World, mark, new_key

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
async def person(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with logged_in(world) as client:
        yield client


async def test_a_sweep_shows_what_was_tried_and_what_was_best(world, person):
    sweep = await add_sweep(world, "demo", num_trials=18, state="succeeded")
    row = await world.db.fetchrow("SELECT best, best_valid_loss FROM sweep WHERE sweep_id = $1", sweep)
    words = words_of(await person.get(f"/sweeps/{sweep}"))
    assert f"trial {row['best']} , validation loss {row['best_valid_loss']:.4g}"[:28] in words
    assert "18 of 40" in words
    assert "learning_rate" in words
    listed = words_of(await person.get("/sweeps"))
    assert f"{row['best_valid_loss']:#.4g}" in listed


async def test_a_sweep_is_live_while_it_runs(world, person):
    sweep = await add_sweep(world, "demo", num_trials=4, state="running")
    async with person.stream("GET", f"/sweeps/{sweep}/stream", timeout=30) as answer:
        lines = answer.aiter_lines()
        first = await anext(line async for line in lines if line.startswith("data: {"))
        assert "4 of 40" in first
        await world.db.execute(
            "UPDATE trial SET state = 'completed', valid_loss = 0.125 WHERE sweep_id = $1 AND number = 3",
            sweep,
        )
        second = await anext(line async for line in lines if line.startswith("data: {"))
        assert "0.1250" in second


async def test_a_sweep_without_a_trial_says_so(world, person):
    sweep = await add_sweep(world, "demo", num_trials=0, state="running")
    assert "None has begun yet" in words_of(await person.get(f"/sweeps/{sweep}"))


async def test_a_sweep_is_cancelled_after_a_question(world, person):
    sweep = await add_sweep(world, "demo", num_trials=3, state="running")
    html = (await person.get(f"/sweeps/{sweep}")).text
    assert "none goes to the gate" in html
    form = {"csrf": csrf_in(html)}
    asking = asyncio.create_task(person.post(f"/sweeps/{sweep}/cancel", data=form))
    assert (await world.heard(sweep, "CancelSweep")).message.tenant == "demo"
    assert (await asking).headers["location"] == f"/sweeps/{sweep}"


async def hidden(person: httpx.AsyncClient) -> dict[str, str]:
    """What the form carries by itself."""
    html = (await person.get("/sweeps/new")).text
    return {"csrf": csrf_in(html), "once": re.search(r'name="once" value="([0-9a-f]{32})"', html)[1]}


def text_in(html: str) -> str:
    return unescape(re.search(r"<textarea[^>]*>\n(.*?)</textarea>", html, re.DOTALL)[1])


async def an_example(world: World, person: httpx.AsyncClient) -> httpx.Response:
    files = [(await world.upload(name=f"{name}-{mark()}.jsonl"))["id"] for name in ("train", "valid")]
    named = {"base": world.base_name, "training_file": files[0], "validation_file": files[1]}
    return await person.get("/sweeps/new", params=named)


class TestNewSweeps:
    async def test_say_what_is_known_before_the_button(self, world, person):
        page = await an_example(world, person)
        words = words_of(page)
        assert "can begin Nothing that is known keeps its trials from their end." in words
        assert "trials at most 20, 2 at once, chosen by tpe; the worse ones end early, by median" in words
        assert "learning_rate 1e-5 to 1e-3, by its logarithm; lora.rank 8, 16, 32" in words
        assert "at most $25.00 for all trials together" in words
        text = text_in(page.text)
        body = tomllib.loads(text)
        assert (
            f"cat > sweep.toml <<'END' {' '.join(text.split())} END retune sweeps create sweep.toml" in words
        )
        curl = re.search(r"--data '(\{.*?)'\s*</pre>", unescape(page.text), re.DOTALL)[1]
        assert json.loads(curl) == body
        answer = await world.ask("POST", "/sweeps", json=body)
        assert answer.status_code == 200, answer.text
        grid = text.replace('"tpe"', '"grid"').replace("high = 1e-3\nlog = true", "high = 2e-5\nstep = 1e-5")
        answer = await person.post("/sweeps/new/check", data=await hidden(person) | {"text": grid})
        assert "trials 6 of 6 combinations, 2 at once, chosen by grid" in words_of(answer)

    @pytest.mark.parametrize(
        ("old", "new", "line", "message"),
        [
            ("num_trials = 20", "num_trials = 'x'", "num_trials", "num_trials: found 'x'"),
            ("name = ", "<script>alert(1)</script> = ", "<script>", "not TOML"),
            ("low = 1e-5", "low = 1", "[parameters.learning_rate]", "found low 1 and high 0.001, expected low below high"),
            ('"lora.rank"', '"lora.ranks"', "[parameters.learning_rate]", "found 'lora.ranks', expected one of"),
            ("choices = [8, 16, 32]", "choices = [0]", '[parameters."lora.rank"]', "parameters.lora.rank: 0 is none that recipe.lora.rank takes"),
            ("validation_file = ", "#", "load_best_model_at_end", "expected validation_file"),
            ("training_file = ", "training_file = 'rows.jsonl' #", "training_file", "found the path 'rows.jsonl'"),
            ("model = ", "model = 'nobody' #", "model", "base model 'nobody' is not registered"),
        ],
    )  # fmt: skip
    async def test_that_are_refused_say_so_at_the_line(self, world, person, old, new, line, message):
        text = text_in((await an_example(world, person)).text)
        assert text.count(old) == 1
        form = await hidden(person) | {"text": text.replace(old, new)}
        for path, status in (("/sweeps/new/check", 200), ("/sweeps", 400)):
            answer = await person.post(path, data=form)
            words = words_of(answer)
            assert answer.status_code == status
            assert "cannot begin 1 problem above." in words
            assert "<script>alert" not in answer.text
            assert text_in(answer.text) == form["text"], "what was typed is kept"
            assert 'id="as-command" data-part></div>' in answer.text, "there is nothing to copy"
            problems = re.search(r'id="problems"[^>]*>(.*?)</div>', answer.text, re.DOTALL)[1]
            if path == "/sweeps/new/check" or "path" not in message:
                assert message in unescape(problems)
            number = int(re.search(r'data-line="(\d+)"', problems)[1])
            assert form["text"].split("\n")[number - 1].startswith(line)

    async def test_name_the_stored_file_that_a_path_may_mean(self, world, person):
        file = await world.upload(name=f"rows-{mark()}.jsonl")
        text = text_in((await an_example(world, person)).text)
        text = re.sub(r'training_file = "[^"]*"', f'training_file = "data/{file["filename"]}"', text, count=1)
        answer = await person.post("/sweeps/new/check", data=await hidden(person) | {"text": text})
        assert f"expected the id of a stored file: {file['id']} has that name" in words_of(answer)

    async def test_begin_once_however_often_the_form_is_sent(self, world, person):
        text = text_in((await an_example(world, person)).text)
        form = await hidden(person) | {"text": text}
        first, second = await asyncio.gather(*(person.post("/sweeps", data=form) for _ in range(2)))
        assert first.status_code == second.status_code == 303, words_of(first)
        assert first.headers["location"] == second.headers["location"]
        sweep_id = first.headers["location"].rpartition("/")[2]
        sent = (await world.heard(sweep_id, "SubmitSweep")).message
        assert (sent.tenant, sent.spec.job.base_model, sent.spec.num_trials) == ("demo", world.base_name, 20)
        again = await person.get(f"/sweeps/new?from={sweep_id}")
        assert tomllib.loads(text_in(again.text))["parameters"] == tomllib.loads(text)["parameters"]
        assert "can begin" in words_of(again)
        other = await person.post(
            "/sweeps", data=form | {"text": text.replace("num_trials = 20", "num_trials = 21")}
        )
        assert other.status_code == 303, words_of(other)
        assert other.headers["location"] != first.headers["location"]
        async with logged_in(world, "other") as client:
            assert (await client.get(f"/sweeps/new?from={sweep_id}")).status_code == 404

    async def test_are_filled_in_from_a_job(self, world, person):
        job_id = await world.a_running_job()
        body = tomllib.loads(text_in((await person.get(f"/sweeps/new?from={job_id}")).text))
        assert (body["job"]["model"], "learning_rate" in body["parameters"]) == (world.base_name, True)
        async with logged_in(world, "other") as client:
            assert (await client.get(f"/sweeps/new?from={job_id}")).status_code == 404

    async def test_of_others_are_refused(self, world, person):
        form = await hidden(person) | {"text": text_in((await an_example(world, person)).text)}
        before = await world.db.fetchval("SELECT count(*) FROM sweep")
        assert (await person.post("/sweeps", data=form | {"csrf": "0" * 64})).status_code == 403
        assert await world.db.fetchval("SELECT count(*) FROM sweep") == before

    async def test_that_the_tenant_may_not_have_are_not_offered(self, world):
        tenant = f"t-{mark()}"
        world.keys[tenant] = await new_key(world, tenant)
        await world.db.execute("""UPDATE tenant SET quotas = '{"open_jobs": 0}' WHERE name = $1""", tenant)
        async with logged_in(world, tenant) as client:
            page = await client.get("/sweeps/new")
        assert "0 jobs have not ended, which is all that the tenant may have" in words_of(page)
        assert re.search(r"disabled>Begin the sweep", page.text)
