"""Seeded misfortune: processes killed, frozen or told to end, lines slowed and cut, S3 that errs, a full disk."""

import asyncio
import errno
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from deploy.local.errors import StackError
from deploy.local.stack import Stack
from schemas.topics import SERVICES
from shared.processes.ending import until
from shared.processes.identity import Identity
from tests.chaos.checker import with_word
from tests.chaos.fronts import Fronts

PARTS = ("kafka", "postgres", "s3")
DETACHED = {
    "runner": "services.trainer_agent.runner",
    "trainer": "tests.chaos.trainer",
    "scorer": "-m tests.chaos.stand_ins",
    "replica": "stand_in_engine.py --",
}
"""What services start, by a word of its command line."""
MEAN_PAUSE_SECONDS = 3.0
PATIENCE_SECONDS = 5.0
QUIET_TAIL_SECONDS = 1.0
"""No fault begins so late."""
LEAST_SECONDS = 200.0
"""Each kind of fault strikes at least once in so long a time, 18 times in an hour, where so many are planned."""


class Fault(StrEnum):
    KILL = "kill -9"
    TERMINATE = "kill -TERM"
    FREEZE = "kill -STOP"
    SLOW = "latency"
    STALL = "stall"
    RESET = "reset"
    CUT = "cut"
    ERRORS = "errors"
    FULL = "disk full"


@dataclass(frozen=True)
class Choice:
    weight: int
    fault: Fault
    targets: tuple[str, ...]
    longest_seconds: float = 0.0
    """A fault that lasts is taken back after one to so many seconds."""


PROCESSES = (
    Choice(12, Fault.KILL, SERVICES),
    Choice(4, Fault.TERMINATE, SERVICES),
    Choice(5, Fault.FREEZE, SERVICES, 12.0),
    Choice(3, Fault.KILL, PARTS),
    Choice(2, Fault.FREEZE, PARTS, 6.0),
    Choice(8, Fault.KILL, tuple(DETACHED)),
    Choice(2, Fault.TERMINATE, ("runner", "trainer")),
    Choice(4, Fault.FREEZE, tuple(DETACHED), 20.0),
)
LINES = (
    Choice(2, Fault.SLOW, ("kafka", "postgres"), 6.0),
    Choice(2, Fault.STALL, ("kafka", "postgres"), 6.0),
    Choice(3, Fault.RESET, ("kafka", "postgres")),
    Choice(2, Fault.CUT, ("kafka", "postgres"), 3.0),
    Choice(4, Fault.ERRORS, ("s3",), 8.0),
)
DISK = (Choice(2, Fault.FULL, ("nodes",), 8.0),)


@dataclass(frozen=True)
class Blow:
    at_seconds: float
    fault: Fault
    target: str
    lasts_seconds: float
    draw: float
    """0 to 1: which one, where there are several of the kind."""

    def __str__(self) -> str:
        lasting = f" for {self.lasts_seconds:.1f} s" if self.lasts_seconds else ""
        return f"{self.at_seconds:7.1f} s  {self.fault} {self.target}{lasting}"


def plan(seed: int, seconds: float, menu: Sequence[Choice]) -> list[Blow]:
    """The same seed gives the same blows. Each is over before `seconds` are."""
    source = random.Random(seed)
    blows: list[Blow] = []
    at = source.expovariate(1 / MEAN_PAUSE_SECONDS)
    while at < seconds - QUIET_TAIL_SECONDS:
        (choice,) = source.choices(menu, [each.weight for each in menu])
        left = seconds - QUIET_TAIL_SECONDS - at
        lasts = min(left, source.uniform(1.0, choice.longest_seconds)) if choice.longest_seconds else 0.0
        blows.append(Blow(at, choice.fault, source.choice(choice.targets), lasts, source.random()))
        at += source.expovariate(1 / MEAN_PAUSE_SECONDS)
    return blows


def too_few(struck: Sequence[Blow], planned: Sequence[Blow], *, seconds: float) -> dict[Fault, int]:
    """How often each kind of fault struck that struck less often than it must in so long a time."""
    strikes, plans = (Counter(blow.fault for blow in blows) for blows in (struck, planned))
    least = int(seconds / LEAST_SECONDS)
    return {kind: strikes[kind] for kind in plans if strikes[kind] < min(least, plans[kind])}


class Nemesis:
    """`await Nemesis(stack, …).run()`; prints what it did when."""

    def __init__(
        self, stack: Stack, *, seed: int, seconds: float, lines: Fronts | None, disk: "SmallDisk | None"
    ) -> None:
        self._stack = stack
        self._lines = lines
        self._disk = disk
        menu = (*PROCESSES, *(LINES if lines else ()), *(DISK if disk else ()))
        self.blows = plan(seed, seconds, menu)
        self.struck: list[Blow] = []
        self.missed: list[Blow] = []
        """Aimed at a process that was not there."""
        self._lasting: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Everything that lasts is taken back when this returns, also where it is cancelled."""
        began = time.monotonic()
        try:
            for blow in self.blows:
                await asyncio.sleep(max(0.0, began + blow.at_seconds - time.monotonic()))
                task = asyncio.create_task(self._strike(blow), name=str(blow))
                self._lasting.add(task)
            await asyncio.gather(*self._lasting)
        finally:
            for task in self._lasting:
                task.cancel()
            await asyncio.gather(*self._lasting, return_exceptions=True)
            self.heal()

    def heal(self) -> None:
        if self._lines:
            self._lines.kafka.heal()
            self._lines.postgres.heal()
            self._lines.s3.rate = 0.0
        if self._disk:
            self._disk.release()

    async def _strike(self, blow: Blow) -> None:
        outcome = await self._outcome(blow)
        (self.missed if outcome else self.struck).append(blow)
        print(f"{blow}{f' ({outcome})' if outcome else ''}", flush=True)  # noqa: T201

    async def _outcome(self, blow: Blow) -> str:
        """Why it did not strike; empty where it did."""
        match blow.fault:
            case Fault.KILL | Fault.TERMINATE | Fault.FREEZE:
                return await self._hit_process(blow)
            case Fault.FULL:
                assert self._disk is not None, "without a disk of our own it is not on the menu"
                async with self._disk.full():
                    await asyncio.sleep(blow.lasts_seconds)
            case Fault.ERRORS:
                assert self._lines is not None, "without lines it is not on the menu"
                self._lines.s3.rate = 0.3
                await asyncio.sleep(blow.lasts_seconds)
                self._lines.s3.rate = 0.0
            case _:
                await self._hit_line(blow)
        return ""

    async def _hit_process(self, blow: Blow) -> str:
        process = await self._process(blow)
        if process is None:
            return "there is none"
        if blow.fault is Fault.FREEZE:
            await _frozen(process, blow.lasts_seconds)
        else:
            number = signal.SIGKILL if blow.fault is Fault.KILL else signal.SIGTERM
            process.signal_alone(number)
        return ""

    async def _process(self, blow: Blow) -> Identity | None:
        if blow.target in DETACHED:
            return await self._detached(blow)
        with suppress(StackError):
            child = self._stack._supervisor.child(blow.target)
            return child.identity if child.is_running else None
        return None

    async def _detached(self, blow: Blow) -> Identity | None:
        """Most of these live for seconds, so the next one is waited for."""
        processes: list[Identity] = []

        def is_there() -> bool:
            processes[:] = sorted(with_word(self._stack, DETACHED[blow.target]))
            return bool(processes)

        await until(is_there, PATIENCE_SECONDS)
        return processes[int(blow.draw * len(processes))] if processes else None

    async def _hit_line(self, blow: Blow) -> None:
        assert self._lines is not None, "without lines it is not on the menu"
        line = self._lines.kafka if blow.target == "kafka" else self._lines.postgres
        match blow.fault:
            case Fault.SLOW:
                line.latency_seconds = 0.2
            case Fault.STALL:
                line.stall()
            case Fault.RESET:
                line.reset()
            case Fault.CUT:
                line.cut_after(20_000)
        if blow.lasts_seconds:
            await asyncio.sleep(blow.lasts_seconds)
            line.heal()


async def _frozen(process: Identity, seconds: float) -> None:
    process.signal_alone(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        process.signal_alone(signal.SIGCONT)


class SmallDisk:
    """A file system of its own, so that it can be full without anybody else's being so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    @asynccontextmanager
    async def full(self) -> AsyncIterator[None]:
        try:
            await asyncio.to_thread(self._fill)
            yield
        finally:
            self.release()

    def release(self) -> None:
        self._filler.unlink(missing_ok=True)

    def _fill(self) -> None:
        with self._filler.open("wb") as file:
            try:
                while True:
                    os.write(file.fileno(), bytes(1024 * 1024))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


@contextmanager
def small_disk(folder: Path, *, mebibytes: int = 96) -> Iterator[SmallDisk | str]:
    """The folder on a disk of its own, or why there can be none."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=700", "chaos", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield f"no disk can be mounted here: {done.stderr.strip()}"
        return
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
