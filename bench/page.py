"""What the page costs, in a real browser on the local stack: `python -m bench.page`. It needs Debian's Chromium.

A job of 2,000 steps and one of 100,000 are opened with an empty cache. `first_load_bytes` is what came over the
wire, `first_chart_seconds` the time from the address to the first chart, and `curve_seconds` that from asking for
the curve of the loss to its chart; the longer job is opened with curves over time and over tokens, too.
`change_seconds` is the time from sending a step to Kafka to its number on the screen; each is sent at another moment
between two looks of the stream. Then 200 pages are open at once, as streams without a browser: memory and processor
time that the gateway takes for them, and the time until the last one has a change.
"""

import asyncio
import random
import re
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from playwright.async_api import async_playwright

from bench import report
from deploy.local.stack import Stack
from schemas.training import StepsRecorded
from tests.browser import ARGUMENTS, CHROMIUM, visiting
from tests.integration.gateway.pages import add_steps, logged_in
from tests.integration.gateway.world import World, a_step, met

ROUNDS = 7
CHANGES = 40
PAGES = 200
IDLE_SECONDS = 20
LONGEST = "100,000 steps"
STEPS = {"2,000 steps": 2_000, LONGEST: 100_000}
SEED = 1
WATCH = """
    addEventListener("DOMContentLoaded", () => {
      new MutationObserver(() => {
        const chart = document.querySelector("[data-metric=loss] canvas");
        if (chart && !window.firstChart) window.firstChart = performance.now();
        const value = document.querySelector("[data-metric=loss] [data-value]")?.textContent ?? "";
        const step = Number(value.split("at step ")[1]?.replaceAll(",", ""));
        if (step && !window.shownAt[step]) window.shownAt[step] = performance.timeOrigin + performance.now();
      }).observe(document.body, { childList: true, subtree: true, characterData: true });
    });
    window.shownAt = {};"""
MEASURE = """() => {
    const asked = performance.getEntriesByType("resource").find((each) => each.name.includes("metric=loss"));
    return { chart: window.firstChart / 1000, asked: asked.startTime / 1000 };
}"""


async def main() -> None:
    assert CHROMIUM is not None, "no Chromium: install Debian's package `chromium`"
    async with AsyncExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory())
        stack = Stack(Path(folder) / "state", tenants=("demo", "other"), report=report.progress)
        await stack.up(("gateway",))
        closing.push_async_callback(stack.down)
        world = await closing.enter_async_context(met(stack))
        await world.db.execute("""UPDATE tenant SET quotas = '{"streams": 1000}'""")
        jobs = {name: await a_job(world, count) for name, count in STEPS.items()}
        running = await closing.enter_async_context(async_playwright())
        browser = await running.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS])
        closing.push_async_callback(browser.close)
        results: dict[str, Any] = {name: await loads(browser, world, job) for name, job in jobs.items()}
        for axis in ("time", "tokens"):
            results[f"{LONGEST} over {axis}"] = await loads(browser, world, jobs[LONGEST], axis=axis)
        results["change_seconds"] = summary(await changes(browser, world, jobs["2,000 steps"]))
        results["open_pages"] = await open_pages(world, jobs["2,000 steps"])
    settings = {
        "rounds": ROUNDS,
        "changes": CHANGES,
        "pages": PAGES,
        "idle_seconds": IDLE_SECONDS,
        "seed": SEED,
    }
    report.write("page", results, packages=("fastapi", "uvicorn", "playwright"), settings=settings)


async def a_job(world: World, num_steps: int) -> str:
    job_id: str = await world.a_running_job()
    await add_steps(world, job_id, num_steps)
    await world.db.execute("UPDATE job SET num_steps = $2 WHERE job_id = $1", job_id, 2 * num_steps)
    return job_id


async def loads(browser: Any, world: World, job_id: str, *, axis: str = "step") -> dict[str, Any]:
    """Open the page of a job, each time with an empty cache."""
    loaded, charts, curves = [], [], []
    for _ in range(ROUNDS):
        async with visiting(browser, world) as page:
            await page.add_init_script(WATCH)
            received = await bytes_received(page)
            await page.goto(f"/jobs/{job_id}?x={axis}")
            await page.wait_for_function("() => document.querySelectorAll('#charts canvas').length >= 5")
            measured = await page.evaluate(MEASURE)
            loaded.append(sum(received))
            charts.append(measured["chart"])
            curves.append(measured["chart"] - measured["asked"])
    report.progress(
        f"{job_id} over {axis}: first chart {charts[-1]:.2f} s, curve {curves[-1]:.2f} s, {loaded[-1] / 1000:.0f} kB"
    )
    return {
        "first_load_bytes": report.summary(loaded),
        "first_chart_seconds": summary(charts),
        "curve_seconds": summary(curves),
    }


async def bytes_received(page: Any) -> list[int]:
    """Bytes of each answer as they came, headers too; the stream that stays open is not among them."""
    received: list[int] = []
    session = await page.context.new_cdp_session(page)
    await session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    return received


async def changes(browser: Any, world: World, job_id: str) -> list[float]:
    """Seconds from a step's way to Kafka to its number on the screen."""
    draw = random.Random(SEED)
    seconds = []
    async with visiting(browser, world) as page:
        await page.add_init_script(WATCH)
        await page.goto(f"/jobs/{job_id}")
        await page.wait_for_selector("#live[data-state=live]")
        for step in range(3_001, 3_001 + CHANGES):
            await asyncio.sleep(0.2 + draw.random())
            sent_at = time.time()
            await say_step(world, job_id, step)
            shown = await page.wait_for_function(f"() => window.shownAt[{step}]")
            seconds.append(await shown.json_value() / 1000 - sent_at)
    return seconds


async def say_step(world: World, job_id: str, step: int) -> None:
    recorded = StepsRecorded(job_id=job_id, tenant="demo", attempt=1, steps=(a_step(step),))
    await world.record(recorded)


async def open_pages(world: World, job_id: str) -> dict[str, Any]:
    """In a gateway that has just begun: what it has freed would hide what it takes."""
    await world.stack.stop("gateway")
    await world.stack.start("gateway")
    await world.stack.wait_healthy("gateway")
    gateway = psutil.Process(world.stack.pid("gateway"))
    async with logged_in(world) as person, AsyncExitStack() as closing:
        address = stream_in((await person.get(f"/jobs/{job_id}")).text)
        await asyncio.sleep(IDLE_SECONDS)
        alone = await processor_share(gateway)
        before = gateway.memory_full_info().uss
        limits = httpx.Limits(max_connections=None)
        client = await closing.enter_async_context(
            httpx.AsyncClient(base_url=person.base_url, cookies=person.cookies, limits=limits, timeout=60.0)
        )
        pages = [await closing.enter_async_context(streaming(client, address)) for _ in range(PAGES)]
        await asyncio.gather(*(until_event(lines, "ready") for lines in pages))
        share = await processor_share(gateway)
        added = gateway.memory_full_info().uss - before
        delays = []
        for step in range(4_001, 4_001 + ROUNDS):
            sent_at = time.monotonic()
            await say_step(world, job_id, step)
            await asyncio.gather(*(until_event(lines, "steps", f'"step": {step},') for lines in pages))
            delays.append(time.monotonic() - sent_at)
    return {
        "pages": PAGES,
        "memory_bytes_a_page": round(added / PAGES),
        "processor_share": round(share, 4),
        "processor_share_without": round(alone, 4),
        "last_page_seconds": summary(delays),
    }


async def processor_share(process: psutil.Process) -> float:
    """Of one core, while nothing happens."""
    before = process.cpu_times()
    await asyncio.sleep(IDLE_SECONDS)
    after = process.cpu_times()
    seconds: float = after.user + after.system - before.user - before.system
    return seconds / IDLE_SECONDS


def stream_in(html: str) -> str:
    address = re.search(r'data-stream="([^"]+)"', html)
    assert address is not None
    return address[1].replace("&amp;", "&")


@asynccontextmanager
async def streaming(client: httpx.AsyncClient, address: str) -> AsyncIterator[AsyncIterator[str]]:
    async with client.stream("GET", address) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield answer.aiter_lines()


async def until_event(lines: AsyncIterator[str], name: str, part: str = "") -> None:
    is_asked = False
    async for line in lines:
        if line.startswith("event: "):
            is_asked = line == f"event: {name}"
        elif is_asked and line.startswith("data: ") and part in line:
            return


def summary(seconds: list[float]) -> dict[str, Any]:
    return report.summary([round(each, 4) for each in seconds])


if __name__ == "__main__":
    asyncio.run(main())
