"""In a real browser: what is done from a list, and what a link to a page holds."""

import json
import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from schemas import layout
from tests import browser
from tests.integration.gateway.in_chromium import IN_CHROMIUM, expect, playwright
from tests.integration.gateway.pages import a_gated_model
from tests.integration.gateway.test_page_orders import ORDERS
from tests.integration.gateway.test_page_searches import LISTS, List
from tests.integration.gateway.world import mark, new_key

pytestmark = IN_CHROMIUM


@pytest.fixture(scope="module")
async def chromium() -> AsyncIterator[Any]:
    async with browser.opened(playwright) as chromium:
        yield chromium


async def test_a_job_is_cancelled_from_the_list_after_a_question(world, chromium):
    job = await world.a_running_job()
    async with browser.visiting(chromium, world) as page:
        await page.goto(f"/jobs?q={job.removeprefix('ftjob-')}")
        await page.get_by_role("button", name="Cancel…").click()
        dialog = page.locator(f"#ask-cancel-{job}")
        await expect(dialog).to_contain_text("Cancel job test?")
        await dialog.get_by_role("button", name="Cancel job").click()
        await expect(page.locator("#answer")).to_contain_text("cancel asked")
        assert (await world.heard(job, "CancelJob")).message.tenant == "demo"


@pytest.mark.parametrize("listing", LISTS, ids=lambda each: each.path[1:])
async def test_a_list_is_searched_while_somebody_types_and_stays_live(world, chromium, listing: List):
    tenant = f"t-{mark()}"
    world.keys[tenant] = await new_key(world, tenant)
    await listing.add(world, tenant, "support-1")
    await listing.add(world, tenant, "billing-2", is_other=True)
    async with browser.visiting(chromium, world, tenant=tenant) as page:
        rows, refused = page.locator("#list table").first.locator("tbody tr"), page.locator("#refused")
        await page.goto(listing.path)
        await expect(rows).to_have_count(2)
        await page.keyboard.press("/")
        await page.keyboard.type("support")
        await expect(rows).to_have_count(1)
        await page.wait_for_url(f"**{listing.path}?q=support&sort=*")
        await listing.add(world, tenant, "support-3")
        await expect(rows).to_have_count(2)
        await page.fill("#q", "support status:no")
        await expect(refused).to_contain_text("search: found 'status:no', expected words or status:")
        await expect(rows).to_have_count(2)
        await page.wait_for_url(f"**{listing.path}?q=support&sort=*")
        await page.fill("#q", "nothing")
        await expect(page.locator("#list")).to_contain_text(f"No {listing.kind} fits nothing.")
        await expect(refused).to_be_empty()
        await page.get_by_role("link", name="Clear the search").click()
        await page.wait_for_url(f"**{listing.path}")
        await expect(rows).to_have_count(3)
        await page.get_by_role("link", name=listing.words[1], exact=True).click()
        await expect(rows).to_have_count(1)
        await expect(page.locator("#q")).to_have_value(f"status:{listing.words[1]}")
        order = [*ORDERS[listing.path]][-1]
        await page.select_option("#sort", order)
        await page.wait_for_url(f"**&sort={order}")
        await listing.add(world, tenant, "support-4", is_other=True)
        await expect(rows).to_have_count(2)


async def test_a_link_holds_the_zone_of_times_and_the_item_of_a_gate(world, chromium):
    version = await a_gated_model(world, "demo")
    newest = (
        "SELECT eval_id FROM evaluation WHERE model_id = $1 ORDER BY number DESC, created_at DESC LIMIT 1"
    )
    eval_id = await world.db.fetchval(newest, version.model_id)
    lines = "\n".join(json.dumps({"outcome": "failed", "prompt": f"question {n}"}) for n in range(1, 31))
    await world.objects.put_bytes(layout.evaluation_items(eval_id, "holdout", 0), lines.encode())
    gate = f"/models/{version.model_id}/gate"
    async with browser.visiting(chromium, world) as page:
        await page.goto(f"/jobs/{version.job_id}/timeline?tz=Asia/Kolkata")
        zone, time = page.locator("#zone"), page.locator("#events time").last
        await expect(zone).to_have_text("UTC+5:30")
        exact = datetime.fromisoformat(await time.get_attribute("datetime"))
        there = exact.astimezone(ZoneInfo("Asia/Kolkata"))
        await expect(time).to_have_text(f"{there:%H:%M:%S}")
        await expect(time).to_have_attribute("title", f"{there:%Y-%m-%d %H:%M:%S} UTC+5:30")
        await zone.click()
        await page.wait_for_url(f"**/jobs/{version.job_id}/timeline")
        await expect(time).to_have_text(f"{exact:%H:%M:%S}")
        await expect(zone).to_have_text("UTC")

        await page.goto(f"{gate}?item=item-25")
        await expect(page.locator("[data-item=item-25]")).to_be_focused()
        await page.keyboard.press("]")
        await page.wait_for_url("**/gate?item=item-26")
        await page.goto(f"{gate}?item=item-99")
        await expect(page.locator("#items")).to_contain_text("Item item-99 is not on this page")


async def test_the_zone_of_times_stays_from_search_to_search_and_page_to_page(world, chromium):
    job = await world.a_running_job()
    there, in_kolkata = re.compile("[?&]tz=Asia%2FKolkata(&|$)"), "UTC+5:30"
    async with browser.visiting(chromium, world) as page:
        zone = page.locator("#zone")
        await page.goto("/jobs?tz=Asia/Kolkata")
        await page.locator("#q").fill(job.removeprefix("ftjob-"))
        await expect(page.locator("#list tbody tr")).to_have_count(1)
        await page.wait_for_url("**/jobs?q=*&tz=Asia%2FKolkata")
        await page.locator("#sort").select_option("cost")
        await page.wait_for_url("**/jobs?q=*&sort=cost*&tz=Asia%2FKolkata")
        await page.locator("#list tbody a").first.click()
        await page.wait_for_url(f"**/jobs/{job}?tz=Asia%2FKolkata")
        await expect(zone).to_have_text(in_kolkata)
        await page.go_back()
        await expect(page.locator("#sort")).to_have_value("cost")
        await expect(page).to_have_url(there)
        await expect(zone).to_have_text(in_kolkata)
        await page.goto("/events")
        await page.locator("form.toolbar button").click()
        await expect(page).to_have_url(re.compile("/events[?]type=.*[&]tz=Asia%2FKolkata$"))
        await expect(zone).to_have_text(in_kolkata)
        await zone.click()
        await page.get_by_role("link", name="Jobs", exact=True).click()
        await page.wait_for_url("**/jobs")
        await expect(zone).to_have_text("UTC")
