"""Two processes of every service, stopped and started again under load: users and facts notice nothing."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local.environment import process_name
from deploy.local.stack import Stack
from schemas.lifecycle import TERMINAL
from tests.chaos.checker import Violated, hold
from tests.chaos.error_lines import Expected, error_lines, unexpected
from tests.chaos.load import Load
from tests.chaos.rig import INSTANCES, pairs, program
from tests.chaos.scale import at_night, note, scaled, seed
from tests.chaos.test_soak import outcomes, require_no_deadlock, require_none, say
from tests.waiting import until

ROUNDS = scaled(1, 1, 6)
"""Of each, both processes of every service are replaced: by SIGTERM, and in every other one by SIGKILL."""
GRACE_SECONDS = 15.0
"""Then who was asked to stop is killed, which fails the test."""
ANSWER_SECONDS = 15.0
REST_SECONDS = 120.0
EXPECTED = (
    Expected(
        "aiokafka.consumer.group_coordinator",
        "",
        "a group has no coordinator yet, or was put together again during a commit: Kafka's client joins again",
    ),
    Expected(
        "asyncio",
        "exception=CancelledError()",
        "a process that was told to stop cancels what it had gathered",
    ),
)

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(scaled(1200, 1200, 3600)),
    at_night("starts two processes of every service"),
]


@dataclass
class Doors:
    """Both gateways: asked all the time, and each with a client that follows a job there."""

    stack: Stack
    asked: int = 0
    unanswered: list[str] = field(default_factory=list)
    """When neither answered, and what came instead."""
    followed: dict[str, bool] = field(default_factory=dict)
    """By gateway, whether a timeline is open there now."""
    cut: int = 0
    """Timelines that ended before their job."""

    def __post_init__(self) -> None:
        env = self.stack.operator_env()
        names = [process_name("gateway", instance) for instance in INSTANCES]
        self.urls = {name: self.stack.url(name, "/v1") for name in names}
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {env['RETUNE_API_KEY']}"}, timeout=ANSWER_SECONDS
        )

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        watching = [self._watch(), *map(self._follow, self.urls)]
        tasks = [asyncio.create_task(each) for each in watching]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._client.aclose()

    async def is_followed(self, name: str) -> bool:
        return self.followed.get(name, name not in self.urls)

    async def _watch(self) -> None:
        while True:
            answers = await asyncio.gather(*map(self._answer, self.urls.values()))
            self.asked += 1
            if "" not in answers:
                self.unanswered.append(f"{time.strftime('%X')} {'; '.join(answers)}")
            await asyncio.sleep(0.1)

    async def _answer(self, url: str) -> str:
        """Why there was none; empty where there was."""
        try:
            await self._jobs(url)
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    async def _jobs(self, url: str) -> list[dict[str, Any]]:
        answer = await self._client.get(f"{url}/fine_tuning/jobs", params={"limit": 1})
        return list(answer.raise_for_status().json()["data"])

    async def _follow(self, name: str) -> None:
        """The newest job, then the next one."""
        while True:
            with suppress(httpx.HTTPError):
                for job in await self._jobs(self.urls[name]):
                    if job["retune"]["state"] not in TERMINAL:
                        await self._follow_job(name, job["id"])
            self.followed[name] = False
            await asyncio.sleep(0.1)

    async def _follow_job(self, name: str, job_id: str) -> None:
        path = f"{self.urls[name]}/fine_tuning/jobs/{job_id}/events"
        last = ""
        async with self._client.stream("GET", path, params={"stream": "true"}, timeout=None) as answer:
            async for line in answer.raise_for_status().aiter_lines():
                self.followed[name] = True
                last = line or last
        self.cut += last != "data: [DONE]"


async def test_every_process_is_replaced_under_load(tmp_path: Path):
    reports: list[str] = []
    async with pairs(tmp_path, report=reports.append) as stack:
        say("two processes of every service are up")
        doors = Doors(stack)
        load = Load(stack, seed(), max_open=scaled(4, 4, 12), gateways=tuple(doors.urls.values()))
        try:
            await load.prepare(tmp_path)
            async with doors.watched():
                rolling = asyncio.create_task(roll(stack, doors, load))
                await asyncio.gather(rolling, load.run_until(rolling.done))
            await load.finish(within_seconds=REST_SECONDS)
            snapshot = (await hold(stack, within_seconds=REST_SECONDS, say=say)).history.snapshot
            await require_none(load)
        finally:
            await load.close()
        require_no_deadlock(stack)
        require_no_error(stack)
    for what, count in sorted((outcomes(snapshot) + load.did).items()):
        say(f"{count:6} {what}")
    note(
        "rolling restart",
        replaced=ROUNDS * len(INSTANCES) * len(stack.services),
        jobs=len(snapshot.jobs),
        asked=doors.asked,
    )
    assert doors.unanswered == []
    assert doors.cut > 0, "no timeline was followed while its gateway was stopped"
    assert [line for line in reports if "was killed" in line] == []


def require_no_error(stack: Stack) -> None:
    if lines := unexpected(error_lines(stack), EXPECTED):
        raise Violated("\n".join([f"{len(lines)} unexpected lines of level error:", *map(str, lines[:20])]))


async def roll(stack: Stack, doors: Doors, load: Load) -> None:
    """Two at a time, never both of one service. The next two follow once users have moved something since."""
    for turn in range(ROUNDS):
        for service, other in opposite(stack.services):
            kill = turn % 2 == 1
            changes = load.changes
            await asyncio.gather(
                replace_process(stack, doors, service, 0, kill=kill),
                replace_process(stack, doors, other, 1, kill=kill),
            )
            await until(partial(has_changed, load, changes), "a change that a user asked for")


async def has_changed(load: Load, since: int) -> bool:
    return load.changes > since


def opposite(services: Sequence[str]) -> list[tuple[str, str]]:
    """Each service with one that is half of them away."""
    half = len(services) // 2
    return list(zip(services, (*services[half:], *services[:half]), strict=True))


async def replace_process(stack: Stack, doors: Doors, service: str, instance: int, *, kill: bool) -> None:
    name = process_name(service, instance)
    await until(lambda: doors.is_followed(name), f"a timeline at {name}")
    began = time.monotonic()
    if kill:
        await stack.kill(name, signal.SIGKILL)  # its supervisor starts it again
    else:
        await stack._supervisor.stop(name, grace_seconds=GRACE_SECONDS)
        stack._supervisor.start(program(stack, service, instance))
    await stack.wait_healthy(name)
    say(f"{name} replaced in {time.monotonic() - began:.1f} s")
