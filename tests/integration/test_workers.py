"""A worker carries out one order, gets no secret, is ended when it hangs, and ends with whoever started it."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from shared.processes.ending import until
from shared.processes.identity import Identity
from shared.processes.orders import write_order
from shared.processes.tail import last_lines
from shared.processes.workers import ERRORS, REPOSITORY, carry_out
from tests.integration.worker import Deed, Word
from tests.unit.shared.environments import SECRETS

PATIENCE = timedelta(seconds=60)


async def run(
    does: str,
    folder: Path,
    on_message: Callable[[Word], None] = lambda word: None,
    *,
    limit: timedelta = PATIENCE,
    silence: timedelta | None = None,
) -> int:
    return await carry_out(
        "tests.integration.worker",
        write_order(folder, Deed(does=does)),
        work_dir=folder,
        inputs=[REPOSITORY / "tests"],
        messages=TypeAdapter(Word),
        on_message=on_message,
        environment={"OMP_NUM_THREADS": "1"},
        limit=limit,
        silence=silence,
    )


async def test_it_gets_what_its_work_needs_and_no_secret(tmp_path, monkeypatch):
    for name in SECRETS:
        monkeypatch.setenv(name, "canary")
    words: list[Word] = []
    assert await run("report", tmp_path, words.append) == 0
    variables = dict(word.text.split("=", 1) for word in words[1:])
    assert "canary" not in variables.values()
    assert (variables["HOME"], variables["OMP_NUM_THREADS"]) == (str(tmp_path), "1")


async def test_standard_output_is_for_messages_alone(tmp_path):
    words: list[Word] = []
    await run("report", tmp_path, words.append)
    assert words
    assert last_lines(tmp_path / ERRORS, 1) == ["what a library prints"]


async def test_a_crash_is_an_exit_code_and_a_log(tmp_path):
    assert await run("crash", tmp_path) == 1
    assert last_lines(tmp_path / ERRORS, 1) == ["the last words"]


@pytest.mark.parametrize("patience", [{"limit": timedelta(seconds=3)}, {"silence": timedelta(seconds=3)}])
async def test_one_that_hangs_is_ended(tmp_path, patience):
    words: list[Word] = []
    with pytest.raises(TimeoutError):
        await run("hang", tmp_path, words.append, **patience)
    assert Identity.of(int(words[0].text)) is None


async def test_one_that_sends_no_message_is_ended(tmp_path):
    words: list[Word] = []
    with pytest.raises(ValidationError):
        await run("babble", tmp_path, words.append)
    assert Identity.of(int(words[0].text)) is None


async def test_a_cancelled_task_leaves_none(tmp_path):
    words: list[Word] = []
    task = asyncio.create_task(run("hang", tmp_path, words.append))
    assert await until(lambda: bool(words), PATIENCE.total_seconds())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert Identity.of(int(words[0].text)) is None


SERVICE = """
import asyncio, sys
from pathlib import Path
from tests.integration.test_workers import run
asyncio.run(run("hang", Path(sys.argv[1]), lambda word: print(word.text, flush=True)))
"""


async def test_it_ends_with_a_service_that_is_killed(tmp_path):
    command = (sys.executable, "-c", SERVICE, str(tmp_path))
    service = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=REPOSITORY)
    assert service.stdout is not None
    worker = Identity.of(int(await service.stdout.readline()))
    service.kill()
    await service.wait()
    assert worker is not None
    assert await until(lambda: not worker.is_alive(), PATIENCE.total_seconds())
