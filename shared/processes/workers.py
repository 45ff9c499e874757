"""A module of ours in a process of its own, which ends with us and gets no secret: it reads files of strangers."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from shared.processes.environment import inherited
from shared.processes.spawn import ending_with_us, own_files, start

Message = TypeVar("Message")

ERRORS = "stderr.log"
REPOSITORY = Path(__file__).parents[2]


async def carry_out(
    module: str,
    argument: Path,
    *,
    work_dir: Path,
    inputs: Iterable[Path],
    messages: TypeAdapter[Message],
    on_message: Callable[[Message], None],
    environment: Mapping[str, str],
    limit: timedelta,
    silence: timedelta | None = None,
) -> int:
    """Run `python -m <module> <argument>` in `work_dir` to its end, and return its exit code.

    It writes files there alone, reads these and `inputs`, and opens no TCP connection. Its standard error is the file
    ERRORS there. Raises TimeoutError after the limit, or if the process is silent for too long, and ValueError for a
    line that is no message; the process and its group are gone then.
    """
    own = {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-P", "-m", module, str(argument)]
    command = ending_with_us(command, signal.SIGKILL, files=own_files([work_dir], inputs))
    with (work_dir / ERRORS).open("wb") as errors:
        process = await start(
            command,
            environment={**inherited(), **own, **environment},
            folder=work_dir,
            stdout=PIPE,
            stderr=errors,
        )
    try:
        async with asyncio.timeout(limit.total_seconds()):
            while line := await _next_line(process, silence):
                on_message(messages.validate_json(line))
            return await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _next_line(process: Process, silence: timedelta | None) -> bytes:
    assert process.stdout is not None, "it was started with a pipe"
    async with asyncio.timeout(None if silence is None else silence.total_seconds()):
        return await process.stdout.readline()
