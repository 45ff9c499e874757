"""A real browser: Debian's Chromium driven by Playwright, which collects whatever the page's own policy forbids."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.integration.gateway.pages import logged_in, logged_in_as_operator
from tests.integration.gateway.world import World
from tests.waiting import PATIENCE_SECONDS

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
COLLECT = """document.addEventListener("securitypolicyviolation", (event) =>
    window.violated(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));"""


def require() -> Any:
    """Return Playwright; skip the tests of the module where there is no browser."""
    playwright = pytest.importorskip(
        "playwright.async_api", reason="playwright is not installed: `make setup` does"
    )
    if CHROMIUM is None:
        pytest.skip("no Chromium: install Debian's package `chromium`", allow_module_level=True)
    return playwright


@asynccontextmanager
async def opened(playwright: Any) -> AsyncIterator[Any]:
    async with playwright.async_playwright() as running:
        browser = await running.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def visiting(
    browser: Any, world: World, *, tenant: str = "demo", theme: str = "light", size: dict[str, int] = DESKTOP
) -> AsyncIterator[Any]:
    """A page of somebody who has logged in. Nothing may have violated the policy, and no script may have failed."""
    context = await browser.new_context(
        base_url=world.stack.url("gateway"), viewport=size, color_scheme=theme, timezone_id="UTC"
    )
    async with logged_in(world, tenant) as client:
        await context.add_cookies(_cookies(world, client))
    context.set_default_timeout(PATIENCE_SECONDS * 1000)
    problems: list[str] = []

    def violated(what: str) -> None:
        problems.append(what)

    await context.expose_function("violated", violated)
    await context.add_init_script(COLLECT)
    page = await context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    try:
        yield page
        assert problems == []
    finally:
        await context.close()


async def log_in_as_operator(page: Any, world: World) -> None:
    """Beside the tenant's session."""
    async with logged_in_as_operator(world) as client:
        await page.context.add_cookies(_cookies(world, client))


def _cookies(world: World, client: httpx.AsyncClient) -> list[dict[str, str]]:
    url = world.stack.url("gateway")
    return [
        {"name": each.name, "value": each.value or "", "url": f"{url}{each.path}", "sameSite": "Strict"}
        for each in client.cookies.jar
    ]
