"""The page in a real browser: nothing violates its policy, it is live, and it can be used by keyboard alone."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas.job import JobFailed, JobRunning
from schemas.training import StepsRecorded, StepValidated
from tests import browser
from tests.integration.gateway.in_chromium import IN_CHROMIUM, expect, playwright
from tests.integration.gateway.pages import HOSTILE, Shown, add_steps, populate
from tests.integration.gateway.world import ENV, ROW, World, a_step, mark, new_key
from tests.waiting import until

pytestmark = IN_CHROMIUM

COPY_EVENTS = """
    INSERT INTO recent_event (tenant, type, subject, level, message, topic, partition, record_offset, key, headers,
                              payload, sent_at, recorded_at)
    SELECT tenant, type, subject, level, message, topic, partition, record_offset, key, headers, payload, sent_at, now()
      FROM generate_series(1, $3) CROSS JOIN recent_event WHERE tenant = $1 AND subject = $2 AND type = 'JobRunning'
     LIMIT $3"""
COLOURS = "(element) => [getComputedStyle(element).color, getComputedStyle(element).backgroundColor]"
LIVE = "#live[data-state=live]"
COUNT_PARTS = """window.numParts = 0;
window.EventSource = class extends EventSource {
    constructor(url) { super(url); this.addEventListener("part", () => { numParts += 1; }); }
};"""
LOG_LINES = """async () => {
    const { src } = document.querySelector("script[src*='curves']"), text = await (await fetch(src)).text();
    const { powers } = await import(new URL(text.match(/"([^"]*axes.js)"/)[1], src));
    return [powers(0.1, 10), powers(0.01, 1e13)];
}"""


@pytest.fixture(scope="module")
async def shown(world: World) -> Shown:
    return await populate(world)


@pytest.fixture(scope="module")
async def chromium(shown: Shown) -> AsyncIterator[Any]:
    async with browser.opened(playwright) as chromium:
        yield chromium


async def test_a_person_logs_in_finds_a_job_by_keyboard_and_sees_it_live(world, shown, chromium):
    async with browser.visiting(chromium, world) as page:
        await page.context.clear_cookies()
        await page.goto("/jobs")
        await page.fill("#key", world.keys["demo"])
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/jobs")
        await expect(page.locator(LIVE)).to_be_visible()
        await page.keyboard.press("/")
        part = shown.running.removeprefix("ftjob-")
        await page.keyboard.type(part)
        await expect(page.locator("#list tbody tr")).to_have_count(1)
        await page.select_option("#sort", "cost")
        await page.wait_for_url(f"**q={part}&sort=cost")
        await page.select_option("#sort", "created")
        await page.wait_for_url(f"**q={part}&sort=created")
        await page.locator("body").press("Tab")
        await page.evaluate("() => document.activeElement.blur()")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/jobs/{shown.running}")
        value = page.locator("[data-metric=loss] [data-value]")
        await expect(value).to_contain_text("at step 2,000")
        await expect(page.locator("[data-metric=memory_bytes] canvas")).to_be_visible()
        await expect(page.locator(LIVE)).to_be_visible()
        recorded = StepsRecorded(
            job_id=shown.running, tenant="demo", attempt=1, steps=(a_step(2001), a_step(2002))
        )
        await world.record(recorded)
        await expect(value).to_contain_text("2.000 at step 2,002")
        await expect(page.locator("#job-head")).to_contain_text("2,002 of 3,000 steps")
        measured = StepValidated(step=2002, metrics={"valid_loss": 1.25, "full_valid_loss": 1.25})
        later = recorded.model_copy(update={"steps": (a_step(2003),), "validations": (measured,)})
        await world.record(later)
        value = page.locator("[data-metric=valid_loss] [data-value]")
        await expect(value).to_contain_text("1.250 at step 2,002")


async def test_curves_are_drawn_over_what_the_address_says(world, shown, chromium):
    job_id = await world.a_running_job()
    await add_steps(world, job_id, 50)
    async with browser.visiting(chromium, world) as page:
        value = page.locator("[data-metric=loss] [data-value]")
        await page.goto(f"/jobs/{job_id}")
        await expect(value).to_contain_text("at step 50")
        await page.locator("#x-axis").focus()
        await page.keyboard.press("ArrowDown")
        await expect(page).to_have_url(re.compile(r"\?x=time$"))
        await expect(value).to_contain_text("at step 50, 1 min 0")
        await expect(page.locator("#strip-legend")).to_be_visible()
        await page.keyboard.press("ArrowDown")
        await expect(value).to_contain_text("at step 50, 409,600 tokens")
        await page.locator("#log-loss").check()
        await page.locator("[data-metric=loss] .plot").focus()
        await page.keyboard.press("Home")
        await page.keyboard.press("+")
        await expect(page).to_have_url(re.compile(r"\?x=tokens&y=log&from=0&to=14$"))
        await page.reload()
        await expect(value).to_contain_text("at step 14, 114,688 tokens")
        await expect(page.locator("[data-metric=loss] [data-note]")).to_contain_text("log scale")
        assert await page.evaluate(LOG_LINES) == [
            [0.1, 0.2, 0.5, 1, 2, 5, 10],
            [0.01, 1, 100, 1e4, 1e6, 1e8, 1e10, 1e12],
        ]
        await expect(page.locator(LIVE)).to_be_visible()
        await world.record(StepsRecorded(job_id=job_id, tenant="demo", attempt=1, steps=(a_step(51),)))
        await expect(page.locator("[data-metric=loss] [data-note]")).to_contain_text("1 new step after these")
        await page.keyboard.press("r")
        await expect(value).to_contain_text("at step 51")
        await world.record(StepsRecorded(job_id=job_id, tenant="demo", attempt=1, steps=(a_step(52),)))
        await expect(value).to_contain_text("at step 52")
        await page.goto(f"/compare?runs={job_id},{shown.running}&x=time")
        await expect(page.locator("[data-metric=loss] canvas")).to_be_visible()
        await page.locator("[data-metric=loss] .plot").focus()
        await page.keyboard.press("End")
        await expect(value).to_contain_text(re.compile(r"^43 min \d+ s: 1 \d\.\d+, 2 \d"))
        await page.get_by_role("link", name="make baseline").click()
        await page.wait_for_url(f"**/compare?runs={shown.running},{job_id}&x=time")


async def test_a_page_whose_gateway_restarts_says_so_and_catches_up(world, shown, chromium):
    async with browser.visiting(chromium, world) as page:
        await page.goto(f"/jobs/{shown.queued}")
        await expect(page.locator(LIVE)).to_be_visible()
        await world.stack.stop("gateway")
        await expect(page.locator("#live[data-state=reconnecting]")).to_be_visible()
        await expect(page.locator("#stale")).to_contain_text("not live since")
        await world.db.execute("UPDATE job SET cost = 4.5 WHERE job_id = $1", shown.queued)
        await world.stack.start("gateway", env=ENV)
        await world.stack.wait_healthy("gateway")
        await expect(page.locator("#job-head")).to_contain_text("$4.50")
        await expect(page.locator(LIVE)).to_be_visible()


async def test_a_command_asks_first_and_keeps_the_page(world, shown, chromium):
    async with browser.visiting(chromium, world) as page:
        await page.goto(f"/jobs/{shown.queued}")
        await expect(page.locator(LIVE)).to_be_visible()
        await page.get_by_role("button", name="Cancel job…").click()
        await expect(page.locator("#ask-cancel")).to_contain_text("It ends before its first step")
        await page.keyboard.press("Escape")
        assert "CancelJob" not in world.ear.types(shown.queued)
        await page.get_by_role("button", name="Cancel job…").click()
        await page.locator("#ask-cancel").get_by_role("button", name="Cancel job").click()
        await expect(page.locator("#answer")).to_contain_text("cancel asked")
        assert (await world.heard(shown.queued, "CancelJob")).message.tenant == "demo"
        await expect(page.locator("#answer")).to_contain_text("Cancel asked.")


async def test_a_person_makes_a_job_by_keyboard(world, shown, chromium, tmp_path):
    """The file is sent with its progress, errors come to their fields, and what is typed meanwhile stays."""
    rows = tmp_path / "<img src=x>.jsonl"
    rows.write_bytes(ROW * 3)
    other = tmp_path / "valid.jsonl"
    other.write_bytes(ROW)
    async with browser.visiting(chromium, world) as page:
        await page.goto("/jobs/new")
        await page.set_input_files("#file", rows)
        await expect(page.locator("#upload-state")).to_contain_text("is stored as file-")
        await expect(page.locator("#training_file option:checked")).to_have_text("<img src=x>.jsonl · 264 B")
        await page.set_input_files("#file", other)
        await expect(page.locator("#upload-state")).to_contain_text("valid.jsonl is stored as file-")
        await expect(page.locator("#training_file option:checked")).to_have_text("<img src=x>.jsonl · 264 B")
        await page.select_option("#validation_file", label="valid.jsonl · 88 B")
        await page.select_option("#model", world.base_name)
        await expect(page.locator("#verdict")).to_contain_text("can be submitted")
        await expect(page.locator("#as-command pre")).to_contain_text(f"--model {world.base_name}")
        await expect(page.locator("#method-dpo")).to_be_disabled()
        await page.locator("#settings summary").focus()
        await page.keyboard.press("Enter")
        await page.locator("#retune-recipe-num_epochs").focus()
        await page.keyboard.type("0")
        await expect(page.locator("#error-retune-recipe-num_epochs")).to_contain_text("found '0'")
        await expect(page.locator("#retune-recipe-num_epochs")).to_have_attribute("aria-invalid", "true")
        await expect(page.locator("#retune-recipe-num_epochs")).to_be_focused()
        await page.keyboard.press("Backspace")
        await page.keyboard.type("2")
        await expect(page.locator("#error-retune-recipe-num_epochs")).to_be_empty()
        await expect(page.locator("#as-curl pre")).to_contain_text('"num_epochs": 2')
        submit = page.get_by_role("button", name="Submit the job")
        colours = await submit.evaluate(COLOURS)
        await submit.hover()
        assert await submit.evaluate(COLOURS) == colours, "its text is read under the pointer, too"
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/jobs/ftjob-*")
        job_id = page.url.rpartition("/")[2]
    sent = await world.heard(job_id, "SubmitJob")
    assert sent.message.spec.recipe.num_epochs == 2
    assert sent.message.spec.training_file.filename == rows.name
    assert sent.message.spec.validation_file.filename == other.name


async def test_a_person_begins_a_sweep_by_keyboard(world, shown, chromium):
    """The example is written with what was chosen, an error leads to its line, and what is typed stays."""
    files = [(await world.upload(name=name))["id"] for name in ("train.jsonl", "valid.jsonl")]
    async with browser.visiting(chromium, world) as page:
        await page.goto("/sweeps")
        await page.get_by_role("link", name="New sweep").click()
        await page.select_option("#base", world.base_name)
        await page.select_option("#training_file", files[0])
        await page.select_option("#validation_file", files[1])
        await page.get_by_role("button", name="Write the example").press("Enter")
        await expect(page.locator("#verdict")).to_contain_text("can begin")
        await page.locator("#text").focus()
        await page.keyboard.press("Control+Home")
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("ArrowDown")
        await page.keyboard.type("num_trials = 0 # ")
        await expect(page.locator("#problems")).to_contain_text("num_trials: found '0'")
        await expect(page.locator("#text")).to_be_focused()
        await page.locator("#problems a").press("Enter")
        await expect(page.locator("#text")).to_be_focused()
        await page.keyboard.type("num_trials = 7")
        await expect(page.locator("#verdict")).to_contain_text("at most 7, 2 at once")
        await expect(page.locator("#text")).not_to_have_attribute("aria-invalid", "true")
        await page.get_by_role("button", name="Begin the sweep").press("Enter")
        await page.wait_for_url("**/sweeps/sweep-*")
        await expect(page.locator(LIVE)).to_be_visible()
        sweep_id = page.url.rpartition("/")[2]
    assert (await world.heard(sweep_id, "SubmitSweep")).message.spec.num_trials == 7


async def test_jobs_are_drawn_over_each_other(world, shown, chromium):
    await add_steps(world, shown.gated, 50)
    async with browser.visiting(chromium, world) as page:
        await page.goto(f"/compare?runs={shown.running},{shown.gated}")
        chart = page.locator("[data-metric=loss]")
        await expect(chart.locator("canvas")).to_be_visible()
        await chart.locator(".plot").focus()
        await page.keyboard.press("Home")
        await expect(chart.locator("[data-value]")).to_contain_text("step 1: 1 ")
        # Charts load one after the other.
        await expect(page.locator("[data-metric] [data-note]").last).not_to_be_empty()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        async with page.expect_response(f"**/jobs/{shown.gated}/curve?metric=tokens_per_second*"):
            await world.db.execute("UPDATE job SET cost = 77.5 WHERE job_id = $1", shown.gated)
        await expect(page.locator("#compared-jobs")).to_contain_text("$77.50")
        await expect(chart.locator("canvas")).to_be_visible()
        assert not [url for url in asked if f"/jobs/{shown.running}/curve" in url]


async def test_what_is_pressed_or_asked_about_is_not_replaced_meanwhile(world, shown, chromium):
    """A click on a link that is replaced between the press and the release of the pointer would be lost."""
    async with browser.visiting(chromium, world) as page:
        await page.add_init_script(COUNT_PARTS)

        async def has_part() -> bool:
            return await page.evaluate("numParts > 0")

        await page.goto(f"/compare?runs={shown.gated},{shown.failed}")
        await expect(page.locator(LIVE)).to_be_visible()
        await page.get_by_role("link", name="make baseline").hover()
        await page.mouse.down()
        await world.db.execute("UPDATE job SET cost = 66.25 WHERE job_id = $1", shown.gated)
        await until(has_part, "the change of what is pressed")
        await page.mouse.up()
        await page.wait_for_url(f"**/compare?runs={shown.failed},{shown.gated}")
        job = await world.a_running_job()
        await page.goto(f"/jobs?q={job.removeprefix('ftjob-')}")
        await expect(page.locator(LIVE)).to_be_visible()
        await page.get_by_role("button", name="Cancel…").focus()
        await page.keyboard.down("Space")
        await world.db.execute("UPDATE job SET cost = 77.25 WHERE job_id = $1", job)
        await until(has_part, "the change of what is pressed, and then asked about")
        await page.keyboard.up("Space")
        await expect(page.locator(f"#ask-cancel-{job}")).to_be_visible()
        await expect(page.locator("#list")).not_to_contain_text("$77.25")
        await page.keyboard.press("Escape")
        await expect(page.locator("#list")).to_contain_text("$77.25")


async def test_a_question_is_answered_by_both_side_by_side(world, shown, chromium, replica):
    """What a model writes is text, a side that fails says why, and to stop reaches the engine."""
    version, tuned, base = await world.a_version(), await replica("stream"), await replica("stream")
    tuned.words = ("tuned ", HOSTILE)
    async with browser.visiting(chromium, world) as page:
        await page.goto(f"/models/{version.model_id}")
        sides = [page.locator(f"[data-side={which}]") for which in ("base", "version")]
        await expect(sides[1].locator(".notice")).to_have_text("It is not deployed.")
        await world.serve(version, tuned)
        await world.announce(base, has_base=True)
        for side in sides:
            await expect(side.locator(".notice")).to_have_count(0)
        await expect(page.locator("#question")).to_be_enabled()
        await expect(page.get_by_role("button", name="Ask both")).to_be_enabled()
        await page.locator("#question").focus()
        await page.keyboard.type("What is it?")
        await page.keyboard.press("Control+Enter")
        await expect(page.locator("#ask-state")).to_have_text("both have answered")
        for side, text in zip(sides, ("an answer", f"tuned {HOSTILE}"), strict=True):
            await expect(side.locator("[data-answer]")).to_have_text(text)
            await expect(side.locator("[data-figures]")).to_contain_text("first token after")
            await expect(side.locator("[data-figures]")).to_contain_text("2 tokens")
        base.way = "die in a stream"
        tuned.way = "stall"
        await page.keyboard.press("Control+Enter")
        await expect(sides[0].locator(".notice")).to_contain_text("failed in its answer")
        await expect(sides[1].locator("[data-answer]")).to_have_text("tuned")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.locator("#ask-state")).to_have_text("stopped")
        await expect(page.get_by_role("button", name="Ask both")).to_be_focused()

        async def has_gone() -> bool:
            return tuned.was_left

        await until(has_gone, "the question to be taken back from the engine")


async def test_a_secret_is_rotated_and_an_endpoint_disabled_on_its_page(world, shown, chromium):
    async with browser.visiting(chromium, world) as page:
        await page.goto("/webhooks")
        await page.locator(f"a[href='/webhooks/{shown.webhook}']").click()
        await expect(page.locator(LIVE)).to_be_visible()
        await page.get_by_role("button", name="Rotate secret…").click()
        await page.locator("#rotate").get_by_role("button", name="Rotate secret").click()
        await expect(page.locator("#answer .notice")).to_contain_text("shown only now: whsec_")
        await expect(page.locator("#webhook")).to_contain_text("and the one before it until")
        await expect(page.locator("#webhook")).not_to_contain_text("once it is enabled")
        await page.get_by_role("button", name="Disable").click()
        await expect(page.locator("#answer .notice")).to_contain_text("Disabled: what waits stays")
        await expect(page.get_by_role("button", name="Enable")).to_be_visible()
        await expect(page.locator("#webhook")).to_contain_text("once it is enabled")


async def test_events_come_by_themselves_and_open_by_keyboard(world, shown, chromium):
    """A stream that begins again sends some of what is there: each row is there once, and in its place."""
    job_id = f"ftjob-{mark()}"
    async with browser.visiting(chromium, world) as page:
        await page.goto(f"/events?subject={job_id}")
        await expect(page.locator(LIVE)).to_be_visible()
        await expect(page.locator("[data-none]")).to_contain_text("None fits.")
        await world.voices.say("scheduler", JobRunning(job_id=job_id, tenant="demo", attempt=1))
        rows = page.locator("#events tr")
        await expect(rows).to_have_count(1)
        await expect(page.locator("[data-none]")).to_have_count(0)
        await page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
        failure = JobFailed(job_id=job_id, tenant="demo", failure_class="oom", code="oom", message=HOSTILE)
        await world.voices.say("scheduler", failure)
        await expect(rows).to_have_count(2)
        await expect(rows.first).to_contain_text(HOSTILE)
        await world.db.execute(COPY_EVENTS, "demo", job_id, 60)
        await expect(rows).to_have_count(62)
        await page.goto(f"/events?subject={job_id}")
        await expect(page.locator(LIVE)).to_be_visible()
        first = await rows.first.get_attribute("id")
        await world.db.execute(COPY_EVENTS, "demo", job_id, 1)
        await expect(rows).to_have_count(51)
        await expect(rows.nth(1)).to_have_attribute("id", first)
        await page.goto(f"/events?subject={job_id}&type=JobFailed")
        await page.evaluate("() => document.activeElement.blur()")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/events/*")
        await expect(page.locator("pre.payload")).to_contain_text('"failure_class": "oom"')
        await expect(page.locator(".headers")).to_contain_text("ce_sequence")


async def test_the_operator_revokes_a_key_by_keyboard(world, shown, chromium):
    tenant = f"t-{mark()}"
    await new_key(world, tenant)
    async with browser.visiting(chromium, world) as page:
        await page.goto(f"/admin/tenants/{tenant}")
        await expect(page.get_by_text("no tenant's key opens it")).to_be_visible()
        await page.fill("#key", world.stack.operator_env()["RETUNE_ADMIN_KEY"])
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/admin/tenants/{tenant}")
        await page.get_by_role("button", name="Add a key").press("Enter")
        await expect(page.locator(".notice")).to_contain_text("shown only now: sk-retune-")
        await expect(page.get_by_role("button", name="Revoke…")).to_have_count(2)
        await page.get_by_role("button", name="Revoke…").first.press("Enter")
        dialog = page.locator("dialog[open]")
        key_id = await dialog.locator("label code").inner_text()
        await dialog.locator("input[name=typed]").focus()
        await page.keyboard.type(key_id)
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/admin/tenants/{tenant}")
        await expect(page.get_by_role("row").filter(has_text=key_id)).to_contain_text("revoked")
        await expect(page.get_by_role("button", name="Revoke…")).to_have_count(1)


async def test_keys_are_listed_lead_to_the_search_and_can_be_switched_off(world, shown, chromium):
    async with browser.visiting(chromium, world) as page:
        await page.goto("/deployments")
        button = page.get_by_role("button", name="keyboard shortcuts")
        keys = page.locator("#keys")
        await button.focus()
        await page.keyboard.press("?")
        await expect(keys.get_by_role("row", name="g d Deployments")).to_be_visible()
        await expect(page.get_by_role("button", name="Close")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(keys).to_be_hidden()
        await expect(button).to_be_focused()
        await page.keyboard.press("g")
        await page.keyboard.press("a")
        await page.wait_for_url("**/alerts")
        await page.keyboard.press("Control+k")
        await page.wait_for_url("**/jobs#q")
        await expect(page.locator("#q")).to_be_focused()
        await page.keyboard.type("j?")
        await expect(page.locator("#q")).to_have_value("j?")
        await page.wait_for_url("**/jobs?q=j*")
        await page.goto("/jobs")
        await page.keyboard.press("c")
        chosen = page.locator("input[name=runs]:checked")
        for key in "jxjx":
            await page.keyboard.press(key)
        await expect(chosen).to_have_count(2)
        job_ids = [await chosen.nth(number).input_value() for number in (0, 1)]
        await page.keyboard.press("c")
        await page.wait_for_url(f"**/compare?runs={job_ids[0]}&runs={job_ids[1]}")
        await expect(page.locator("#compared-jobs tbody tr")).to_have_count(2)
        await page.goto(f"/jobs/{shown.running}")
        await page.get_by_role("button", name="copy job id").click()
        await expect(page.locator(".copied")).to_have_text(re.compile("^(copied|selected: press Ctrl.C)$"))
        await page.goto("/jobs")
        await page.get_by_role("button", name="keyboard shortcuts").click()
        await page.get_by_label("shortcuts of letters").uncheck()
        await page.keyboard.press("Escape")
        await page.reload()
        await page.keyboard.press("?")
        await page.keyboard.press("/")
        await expect(page.locator("#q")).not_to_be_focused()
        await page.keyboard.press("Control+k")
        await expect(page.locator("#q")).to_be_focused()
        await expect(keys).to_be_hidden()
