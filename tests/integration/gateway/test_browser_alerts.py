"""An alert's page in a real browser: the curve round its cause, and the button that mutes its rule."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas.alert import AlertsMuted
from tests import browser
from tests.integration.gateway.alerting import page_of_an_alert
from tests.integration.gateway.in_chromium import IN_CHROMIUM, expect, playwright
from tests.integration.gateway.pages import add_steps
from tests.integration.gateway.world import mark, new_key

pytestmark = IN_CHROMIUM


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
