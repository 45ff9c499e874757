"""`make screenshots`: a PNG of every page, light and dark, on a desktop and a phone, to be looked at one by one."""

import asyncio
import sys
import tempfile
from pathlib import Path

from deploy.local.stack import Stack
from schemas.base import FailureClass
from schemas.cost import CostAccrued
from tests import browser
from tests.integration.gateway.cost_rows import accrued, add_costs
from tests.integration.gateway.pages import Shown, add_attempts, add_many_jobs, add_steps, cordon, populate
from tests.integration.gateway.pictured import picture
from tests.integration.gateway.visited import addresses
from tests.integration.gateway.world import met

FOLDER = Path("build/screenshots")
SIZES = {"desktop": browser.DESKTOP, "phone": browser.PHONE}


def spread(shown: Shown) -> list[CostAccrued]:
    """Costs of other jobs on other days."""
    jobs, preempted = (shown.gated, shown.failed, shown.queued), FailureClass.PREEMPTED
    return [
        accrued(
            jobs[day % 3],
            "demo",
            10 + day,
            f"{day * 7 % 11 + 0.25}",
            failure_class=preempted if day % 4 == 0 else None,
            pool="a100-spot" if day % 2 else "h100",
            day=day,
        )
        for day in range(2, 25)
    ]


async def take(folder: Path, only: frozenset[str]) -> None:
    """`only`: names of pictures; none: all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    playwright = browser.require()
    stack = Stack(Path(tempfile.mkdtemp()) / "state", tenants=("demo", "other"))
    await stack.up(("gateway",))
    try:
        async with met(stack) as world, browser.opened(playwright) as chromium:
            shown = await populate(world)
            await add_many_jobs(world, "demo", 120)
            await add_steps(world, shown.gated, 1_500)
            await world.db.execute("UPDATE job SET num_steps = 1500 WHERE job_id = $1", shown.gated)
            await add_attempts(world, shown.gated, "demo")
            await cordon(world, "h100", shown.running)
            await add_costs(world, "demo", shown.running, *spread(shown))
            pages = addresses(shown, await picture(world, shown, "demo"))
            if unknown := only - pages.keys():
                raise SystemExit(f"no pictures {sorted(unknown)}, expected some of {', '.join(pages)}")
            for theme in ("light", "dark"):
                for size, pixels in SIZES.items():
                    async with browser.visiting(chromium, world, theme=theme, size=pixels) as page:
                        await browser.log_in_as_operator(page, world)
                        for name, address in pages.items():
                            if only and name not in only:
                                continue
                            await page.goto(address)
                            await page.wait_for_timeout(900)
                            await page.screenshot(path=folder / f"{name}-{theme}-{size}.png", full_page=True)
    finally:
        await stack.down()


if __name__ == "__main__":
    asyncio.run(take(FOLDER, frozenset(sys.argv[1:])))
