"""A gateway that dies between accepting a request and answering it: the client asks again, nothing is doubled."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.integration.gateway.world import ENV, World, mark
from tests.integration.kills import alive, killed_at

pytestmark = [pytest.mark.stack, pytest.mark.crash_matrix]


async def unanswered(world: World, request: Callable[[], Awaitable[Any]]) -> None:
    """Ask a gateway that dies once it has accepted."""
    async with killed_at(world.stack, "gateway", "gateway.accepted", env=ENV):
        await world.stack.wait_healthy("gateway")
        with pytest.raises(httpx.TransportError):
            await request()
    await alive(world.stack, "gateway", env=ENV)


async def test_a_job_is_submitted_once(world):
    file = (await world.upload())["id"]
    body = {"model": world.base_name, "training_file": file}
    headers = {"idempotency-key": mark()}

    async def submit() -> httpx.Response:
        return await world.ask("POST", "/fine_tuning/jobs", json=body, headers=headers)

    await unanswered(world, submit)
    answers = [await submit() for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    [job_id] = {answer.json()["id"] for answer in answers}
    await world.heard(job_id, "SubmitJob")
    submitted = [
        each.message.job_id
        for story in world.ear.heard.values()
        for each in story
        if each.message.type == "SubmitJob" and each.message.spec.training_file.file_id == file
    ]
    assert submitted == [job_id]
    listed = (await world.ask("GET", "/fine_tuning/jobs", params={"limit": 100})).json()["data"]
    assert [job["id"] for job in listed if job["training_file"] == file] == [job_id]


async def test_a_file_that_was_stored_is_there(world):
    name = f"{mark()}.jsonl"
    await unanswered(world, lambda: world.upload(name=name))
    listed = (await world.ask("GET", "/files", params={"limit": 1000})).json()["data"]
    [stored] = [file for file in listed if file["filename"] == name]
    content = await world.ask("GET", f"/files/{stored['id']}/content")
    assert (content.status_code, len(content.content)) == (200, stored["bytes"])
