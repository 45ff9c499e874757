"""Relays that are born in a moment and killed in another, since all they import is imported once.

Run as a program: each line on stdin forks a relay with these failpoints and prints its pid; the end of stdin ends
the program.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from pydantic_settings import SettingsConfigDict

from shared import failpoints
from shared.messaging.kafka import kafka_producer
from shared.messaging.lease import Lease
from shared.messaging.relay import Relay
from shared.postgres.database import Database
from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="TRACKER_", frozen=True)


class Nursery:
    """Starts and kills one relay after the other; they share an owner, as a restarted process does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._pid = 0
        self.kills = 0

    async def start(self, failpoints: str = "") -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{failpoints}\n".encode())
        self._pid = int(await self._process.stdout.readline())

    @property
    def is_dead(self) -> bool:
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        return False

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self.kills += 1


@asynccontextmanager
async def nursery(env: dict[str, str]) -> AsyncIterator[Nursery]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.chaos.relaying"),
        env=os.environ | env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    relays = Nursery(process)
    try:
        yield relays
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def _relay(settings: Settings) -> None:
    database = Database(settings.postgres_dsn.get_secret_value(), application="relay")
    await database.open()
    password = settings.kafka_password.get_secret_value()
    await Relay(
        database,
        lambda: kafka_producer(
            settings.kafka_bootstrap, settings.kafka_username, password, client_id="relay"
        ),
        Lease(database, "relay", owner="tracker-0", ttl=timedelta(seconds=15)),
        service="tracker",
        renew_seconds=5.0,
    ).run()


def main() -> None:
    settings, children = Settings(), []
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the killed
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            sys.stdin.close()
            failpoints._armed().update(failpoints._parse(line.strip()))
            asyncio.run(_relay(settings))
        children.append(pid)
        print(pid, flush=True)  # noqa: T201
    with contextlib.suppress(ProcessLookupError):
        os.kill(children[-1], signal.SIGKILL)


if __name__ == "__main__":
    main()
