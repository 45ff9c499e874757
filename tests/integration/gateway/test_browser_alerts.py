"""Alerts in a real browser: their marks on a job's curves, the curve round the cause of one, the button that mutes."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas.alert import AlertRule, AlertsMuted
from tests import browser
from tests.integration.gateway.alerting import clear, page_of_an_alert, raise_alert
from tests.integration.gateway.in_chromium import IN_CHROMIUM, expect, playwright
from tests.integration.gateway.pages import add_steps
from tests.integration.gateway.world import mark, new_key

pytestmark = IN_CHROMIUM

PIXELS_OF_OPEN_ALERTS = """(metric) => {
    const hex = getComputedStyle(document.documentElement).getPropertyValue("--warn").trim();
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    const canvas = document.querySelector(`[data-metric=${metric}] canvas`);
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let at = 0; at < data.length; at += 4)
        count += data[at] === red && data[at + 1] === green && data[at + 2] === blue;
    return count;
}"""


@pytest.fixture
async def chromium() -> AsyncIterator[Any]:
    async with browser.opened(playwright) as chromium:
        yield chromium


async def test_the_curve_round_an_alert_is_drawn_and_its_rule_is_muted(world, chromium):
    tenant = f"t-{mark()}"
    world.keys[tenant] = await new_key(world, tenant)
    job_id = await world.a_running_job(tenant)
    await add_steps(world, job_id, 300)
    async with browser.visiting(chromium, world, tenant=tenant) as page:
        await page.goto(await page_of_an_alert(world, job_id, 200, tenant=tenant))
        chart = page.locator("[data-metric=loss]")
        await expect(chart.locator("canvas")).to_be_visible()
        await chart.locator(".plot").focus()
        for key, step in (("Home", "100"), ("End", "300")):
            await page.keyboard.press(key)
            await expect(chart.locator("[data-value]")).to_contain_text(f"at step {step}")
        await page.get_by_role("button", name="Mute…").click()
        await page.locator("dialog[open] select[name=hours]").select_option(label="1 day")
        await page.get_by_role("button", name="Mute", exact=True).click()
        command = await world.heard(tenant, "MuteAlerts")
        assert (command.message.rule, command.message.job_id) == ("loss_spike", job_id)
        fact = AlertsMuted.model_validate(command.message.model_dump())
        await world.voices.say("tracker", fact, causation_id=command.envelope.id)
        await expect(page.locator("#alert")).to_contain_text(f"muted by {command.message.muted_by} until")
        await expect(page.get_by_role("button", name="Unmute")).to_be_visible()


async def test_alerts_are_marked_on_the_curves_of_their_job_as_they_come(world, chromium):
    """Those of one step are read together, by keys and under the pointer; a curve that has not to do with them has none."""
    job_id = await world.a_running_job()
    await add_steps(world, job_id, 300)
    async with browser.visiting(chromium, world) as page:
        await page.goto(f"/jobs/{job_id}")
        loss, rate = (page.locator(f"[data-metric={name}]") for name in ("loss", "learning_rate"))
        for chart in (loss, rate):
            await expect(chart.locator("canvas")).to_be_visible()
        await expect(page.locator("#live[data-state=live]")).to_be_visible()
        raised = await raise_alert(world, job_id, step=300, message="loss 9.5, usually 2")
        await raise_alert(world, job_id, AlertRule.DIVERGENCE, step=300, message="loss 9.5 since step 250")
        await expect(page.locator("#job-marks")).to_contain_text("Marked: 2 open alerts, 0 cleared alerts")
        assert await page.evaluate(PIXELS_OF_OPEN_ALERTS, "loss") > 0
        assert await page.evaluate(PIXELS_OF_OPEN_ALERTS, "learning_rate") == 0
        note = loss.locator("[data-note]")
        await loss.locator(".plot").focus()
        await page.keyboard.press("End")
        await expect(note).to_contain_text("open alert, loss spike at step 300: loss 9.5, usually 2")
        await expect(note).to_contain_text("open alert, divergence at step 300: loss 9.5 since step 250")
        label = "; open alert, "
        assert label in await loss.locator(".plot").get_attribute("aria-label")
        await page.keyboard.press("Home")
        await expect(note).to_contain_text("smoothed 0.6")
        await page.keyboard.press("Tab")
        await clear(world, raised, step=301)
        await expect(page.locator("#job-marks")).to_contain_text("Marked: 1 open alert, 1 cleared alert")
        over = loss.locator(".u-over")
        box = await over.bounding_box()
        await over.hover(position={"x": box["width"] - 3, "y": 60})
        await expect(note).to_contain_text("cleared alert, loss spike at step 300")
        await over.hover(position={"x": box["width"] / 2, "y": 60})
        await expect(note).to_contain_text("smoothed 0.6")
        await rate.locator(".plot").focus()
        await page.keyboard.press("End")
        await expect(rate.locator("[data-value]")).to_contain_text("at step 300")
        await expect(rate.locator("[data-note]")).to_contain_text("every point")
