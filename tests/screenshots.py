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
from tests.integration.gateway.pictured import Pictured, picture
from tests.integration.gateway.world import met

FOLDER = Path("build/screenshots")
NEWEST_FAILURE = "SELECT max(number) FROM recent_event WHERE tenant = 'demo' AND type = 'JobFailed'"
SIZES = {"desktop": browser.DESKTOP, "phone": browser.PHONE}


def addresses(shown: Shown, pictured: Pictured, event: int) -> dict[str, str]:
    """Name of each picture and the page that is on it. `event`: number of one."""
    return {
        "now": "/",
        "jobs": "/jobs",
        "jobs-worst": "/jobs?sort=worst",
        "jobs-search": "/jobs?q=status%3Afailed+sweep",
        "jobs-none": "/jobs?q=nothing-like-this",
        "job-curves": f"/jobs/{shown.running}",
        "job-queued": f"/jobs/{shown.queued}",
        "job-timeline": f"/jobs/{shown.running}/timeline",
        "job-attempts": f"/jobs/{shown.gated}/timeline",
        "job-queued-timeline": f"/jobs/{shown.queued}/timeline",
        "job-logs": f"/jobs/{shown.running}/logs",
        "job-checkpoints": f"/jobs/{shown.running}/checkpoints",
        "job-settings": f"/jobs/{shown.running}/settings",
        "job-cost": f"/jobs/{shown.running}/cost",
        "job-events": f"/jobs/{shown.running}/events",
        "job-timeline-types": f"/jobs/{shown.running}/timeline?type=JobScheduled&type=TrainingResumed",
        "job-failed": f"/jobs/{shown.failed}/timeline",
        "new-job": "/jobs/new",
        "new-job-like": f"/jobs/new?from={shown.running}",
        "compare": f"/compare?runs={shown.running},{shown.gated},{shown.queued}",
        "datasets": "/datasets",
        "datasets-search": "/datasets?q=status%3Aready+support",
        "datasets-none": "/datasets?q=nothing-like-this",
        "dataset": f"/datasets/{shown.dataset}",
        "dataset-priced": pictured.dataset,
        "dataset-rejected": f"/datasets/{shown.rejected}",
        "models": "/models",
        "models-search": "/models?q=status%3Astaging",
        "model": f"/models/{shown.served.model_id}",
        "exports": pictured.exports,
        "deployments": "/deployments",
        "deployments-search": "/deployments?q=status%3Awithdrawn+docs",
        "deployment": pictured.slot,
        "gate": f"/models/{shown.model.model_id}/gate",
        "sweeps": "/sweeps",
        "sweeps-search": "/sweeps?q=status%3Asucceeded",
        "sweep": f"/sweeps/{shown.sweep}",
        "new-sweep": "/sweeps/new",
        "new-sweep-like": f"/sweeps/new?from={shown.sweep}",
        "alerts": "/alerts",
        "alert": pictured.alert,
        "costs": "/costs",
        "costs-none": "/costs?month=2020-01",
        "events": "/events",
        "events-none": "/events?q=nothing-like-this",
        "event": f"/events/{event}",
        "webhooks": "/webhooks",
        "webhooks-search": "/webhooks?q=status%3Aenabled+example.com",
        "webhook": f"/webhooks/{shown.webhook}",
        "admin": "/admin",
        "admin-machines": "/admin/machines",
        "admin-tenant": "/admin/tenants/demo",
        "admin-subscribers": "/admin/subscribers",
        "admin-audit": "/admin/audit",
        "admin-refused": "/login?next=/admin",
        "not-found": "/jobs/ftjob-nobody",
    }


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
            pictured = await picture(world, shown)
            pages = addresses(shown, pictured, await world.db.fetchval(NEWEST_FAILURE))
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
