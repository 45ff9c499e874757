"""The counting service as a process of its own, which can be made to die at a certain place."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE_SECONDS

RENEW_OFTEN = {"TIMING_LEASE_RENEW": "PT0.1S"}


class Victim:
    def __init__(self, env: dict[str, str], log: Path) -> None:
        self._env = env
        self._log = log

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    async def _start(self, failpoints: str = "") -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.integration.kernel.counting"),
                env=os.environ | self._env | RENEW_OFTEN | {"FAILPOINTS": failpoints},
                stderr=log,
            )

    @asynccontextmanager
    async def killed_at(self, name: str) -> AsyncIterator[None]:
        """What is done inside makes the process pass this place, where it dies."""
        async with self._ends(f"{name}=kill", -signal.SIGKILL):
            yield

    @asynccontextmanager
    async def failing_at(self, name: str) -> AsyncIterator[None]:
        """What is done inside makes an error come up at this place; the process ends by it."""
        async with self._ends(f"{name}=raise", 1):
            yield

    @asynccontextmanager
    async def _ends(self, failpoints: str, exit_code: int) -> AsyncIterator[None]:
        process = await self._start(failpoints)
        try:
            yield
            assert await asyncio.wait_for(process.wait(), PATIENCE_SECONDS) == exit_code, (
                f"{failpoints} was never passed"
            )
        finally:
            if process.returncode is None:
                process.kill()

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        process = await self._start()
        try:
            yield
        finally:
            process.terminate()
            # The HTTP server passes the signal on once everything is stopped.
            assert await asyncio.wait_for(process.wait(), PATIENCE_SECONDS) == -signal.SIGTERM
