"""Every page in a real browser, light and dark, on a desktop and a phone: everybody can read it, and its policy holds."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.cache import cache_folder
from tests import browser
from tests.chaos.scale import is_smallest
from tests.integration.gateway.cost_rows import add_costs
from tests.integration.gateway.in_chromium import IN_CHROMIUM, expect, playwright
from tests.integration.gateway.pages import populate
from tests.integration.gateway.pictured import picture, remove_price
from tests.integration.gateway.visited import addresses
from tests.integration.gateway.world import World, mark, new_key

pytestmark = IN_CHROMIUM

WORST = ("serious", "critical")
CUT_WITHOUT_TITLE = """() => [...document.querySelectorAll("td.name > div, .cut")]
    .filter((each) => each.clientWidth < each.scrollWidth && !each.matches(":has([title]), [title]"))
    .map((each) => each.textContent)"""


@pytest.fixture(scope="module")
async def tenant(world: World) -> str:
    tenant = f"t-{mark()}"
    world.keys[tenant] = await new_key(world, tenant)
    return tenant


@pytest.fixture(scope="module")
async def pages(world: World, tenant: str) -> AsyncIterator[dict[str, str]]:
    shown = await populate(world, tenant)
    await add_costs(world, tenant, shown.running)
    yield addresses(shown, await picture(world, shown, tenant))
    await remove_price(world)


@pytest.fixture(scope="module")
async def chromium() -> AsyncIterator[Any]:
    async with browser.opened(playwright) as chromium:
        yield chromium


def axe() -> Path:
    paths = sorted(cache_folder().glob("page-*/node_modules/axe-core/axe.min.js"))
    if not paths:
        pytest.skip("axe-core is not there: `make setup` copies it")
    return paths[-1]


async def test_settings_that_differ_are_read_on_a_phone_without_moving_them(world, tenant, pages, chromium):
    async with browser.visiting(chromium, world, tenant=tenant, size=browser.PHONE) as page:
        trials = [f"ftjob-{pages['sweep'].rpartition('/')[2]}-{number}" for number in range(5)]
        await page.goto(f"{pages['compare']},{','.join(trials)}")
        settings = page.get_by_role("region", name="Settings that differ")
        await expect(settings).to_contain_text("recipe.learning_rate")
        assert await settings.evaluate("(element) => element.scrollWidth - element.clientWidth") == 0
        rates = settings.locator("tr").filter(has_text="recipe.learning_rate").locator("td")
        for number, rate in enumerate(("2e-4", "1e-5", "0.0025"), 1):
            await expect(rates.nth(number - 1)).to_have_text(re.compile(rf"^\s*{number}\s+{rate}\s*$"))
            assert await rates.nth(number - 1).locator(".phone").is_visible()


@pytest.mark.parametrize(
    ("number", "theme", "size"), [(0, "light", browser.DESKTOP), (1, "dark", browser.PHONE)]
)
async def test_every_page_can_be_read_by_everybody(world, tenant, pages, chromium, number, theme, size):
    """No serious finding of axe, and no page that has to be moved sideways. At each change every other page."""
    paths = [*pages.values()]
    async with browser.visiting(chromium, world, tenant=tenant, theme=theme, size=size) as page:
        await browser.log_in_as_operator(page, world)
        for path in paths[number::2] if is_smallest() else paths:
            await page.goto(path)
            width, visible = await page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
            assert width <= visible, path
            assert await page.evaluate(CUT_WITHOUT_TITLE) == [], path
            await page.evaluate(axe().read_text())
            options = {"runOnly": ["wcag2a", "wcag2aa"]}
            result = await page.evaluate("(options) => axe.run(document, options)", options)
            findings = [
                f"{each['id']}: {node['html'][:200]} {node['failureSummary']}"
                for each in result["violations"]
                if each["impact"] in WORST
                for node in each["nodes"]
            ]
            assert findings == [], path
