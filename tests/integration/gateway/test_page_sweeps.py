"""Sweeps on the page: what was tried, what was best, and their end."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.integration.gateway.pages import csrf_in, logged_in, words_of
from tests.integration.gateway.sweep_rows import add_sweep
from tests.integration.gateway.world import World

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


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
