"""The page of a model's exports: what can be asked for, how far it is, what the comparison says, and the files."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from schemas.model import ModelExportFailed, ModelExportProgressed, ModelExportStarted
from tests.integration.gateway.owned_routes import a_ready_export, of_export, parity
from tests.integration.gateway.pages import logged_in, words_of
from tests.integration.gateway.world import World
from tests.waiting import until

pytestmark = pytest.mark.stack

WEIGHTS = b"of a model " * 1_000


@pytest.fixture(scope="module")
async def person(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with logged_in(world) as client:
        yield client


async def shows(person: httpx.AsyncClient, version: Any, text: str) -> str:
    async def look() -> str:
        words: str = words_of(await person.get(f"/models/{version.model_id}/exports"))
        return words if text in words else ""

    return await until(look, text)


async def test_asks_for_an_export_and_follows_it(world, person):
    version = await world.a_version()
    path = f"/models/{version.model_id}/exports"
    page = await person.get(path)
    csrf = re.search(r'name="csrf" value="([^"]+)"', page.text)[1]
    form = {"csrf": csrf, "format": "gguf", "quantization": "q8_0"}
    asking = asyncio.create_task(person.post(path, data=form))
    sent = await world.heard(version.model_id, "ExportModel")
    assert (sent.message.format, sent.message.quantization) == ("gguf", "q8_0")
    about = of_export(version, "q8_0")
    started = ModelExportStarted(**about, estimated_bytes=4_000_000)
    await world.voices.say("registry", started, causation_id=sent.envelope.id)
    answer = await asking
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    progress = ModelExportProgressed(**about, activity="comparing", done=17, total=34, seconds_left=61.0)
    await world.voices.say("registry", progress)
    words = await shows(person, version, "Comparing the files with the trained model: 50.0 %")
    assert "it is under way" in words
    failed = ModelExportFailed(
        **about, code="parity", message="the files are too far from the trained model",
        parity=parity(mean_kl=0.5, passed=False),
    )  # fmt: skip
    await world.voices.say("registry", failed)
    words = await shows(person, version, "The files are too far from the trained model.")
    assert "Export again" in words
    assert "0.5000 nats, at most 0.01000" in words


async def test_says_how_near_the_files_are_and_gives_them(world, person):
    version = await world.a_version()
    export_id = await a_ready_export(world, version, WEIGHTS)
    words = await shows(person, version, "same next token most probable at 99.0 % of 2,564 positions.")
    assert "Training had changed it 100 times as much." in words
    path = f"/models/{version.model_id}/exports"
    link = f"{path}/{export_id}/files/config.json"
    assert f'href="{link}"' in (await person.get(path)).text
    answer = await person.get(link)
    assert (answer.status_code, answer.content) == (200, WEIGHTS)
    part = await person.get(link, headers={"range": "bytes=3-9"})
    assert (part.status_code, part.content) == (206, WEIGHTS[3:10])
    async with httpx.AsyncClient(base_url=str(person.base_url)) as nobody:
        assert (await nobody.get(link)).status_code in (303, 401)


async def test_is_said_to_webhooks_and_in_the_jobs_timeline(world):
    version = await world.a_version()
    await a_ready_export(world, version)

    async def sentences() -> list[str]:
        query = "SELECT message FROM job_event WHERE job_id = $1 AND type LIKE 'ModelExport%' ORDER BY id"
        messages = [row["message"] for row in await world.db.fetch(query, version.job_id)]
        return messages if len(messages) == 2 else []

    assert await until(sentences, "the timeline") == [
        "export to safetensors has begun",
        "export to safetensors is ready: 1 file",
    ]
