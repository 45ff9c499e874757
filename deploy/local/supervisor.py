"""Child processes of one stack: tied to the life of their supervisor, restarted with back-off, stopped together."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.local.errors import StackError, end_of
from deploy.local.state import State
from shared.processes.ending import end
from shared.processes.identity import Identity
from shared.processes.spawn import ending_with_us

FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 10.0
STEADY_SECONDS = 30.0
"""A process that ran this long starts its back-off again when it dies."""
DEATHS_BEFORE_GIVING_UP = 3
PROBE_SECONDS = 0.1


@dataclass(frozen=True)
class Program:
    name: str
    command: tuple[str, ...]
    is_ready: Callable[[], Awaitable[bool]]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    user_id: int | None = None
    """Whom to become; None stays who we are."""


class Child:
    """One program and the process that runs it now."""

    def __init__(self, program: Program, log: Path, mark: str) -> None:
        self.program = program
        self.log = log
        self.mark = mark
        self.restarts = 0
        self.deaths = 0
        self.identity: Identity | None = None
        self.started_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        program = self.program
        user = {} if program.user_id is None else {"user_id": program.user_id}
        mark, _, value = self.mark.partition("=")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ending_with_us(program.command, program.stop_signal, **user),
                env={**inherited_environment(), **program.env, mark: value},
                cwd=program.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started_at = time.monotonic()
        self.identity = Identity.of(self._process.pid)

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while it runs. Reaps it, and before that ends what it left in its process group."""
        process = self._process
        if process is None:
            return None
        if process.returncode is not None:
            return process.returncode
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            # The dead leader still holds its pid, so the group cannot be anybody else's.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        return process.poll()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self.exit_code is None

    async def ended(self) -> int:
        """Wait until the process is gone, woken by the kernel."""
        assert self._process is not None, f"{self.program.name} was never started"
        while (code := self.exit_code) is None:
            await _readable(os.pidfd_open(self._process.pid))
        return code


def inherited_environment() -> dict[str, str]:
    """Ours without the addresses and passwords of whatever stack the person's shell has sourced."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RETUNE_")}


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


class Supervisor:
    def __init__(self, state: State, report: Callable[[str], None]) -> None:
        self.state = state
        self.report = report
        self.restarting = True
        self.phase = "starting"
        self._children: dict[str, Child] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}

    def start(self, program: Program) -> None:
        child = self._children.get(program.name)
        if child and child.is_running:
            raise StackError(f"{program.name} already runs")
        if waiting := self._watches.pop(program.name, None):
            waiting.cancel()  # a restart may be under way
        child = Child(program, self.state.log(program.name), self.state.mark)
        child.spawn()
        self._children[program.name] = child
        self._watches[program.name] = asyncio.create_task(self._watch(child), name=f"watch {program.name}")
        self.record()

    def child(self, name: str) -> Child:
        if name not in self._children:
            raise StackError(f"{name} was not started; running are {', '.join(self._children) or 'none'}")
        return self._children[name]

    def names(self) -> tuple[str, ...]:
        return tuple(self._children)

    async def wait_ready(self, name: str, *, timeout_seconds: float) -> None:
        """Raises StackError, with the end of the log, if it keeps dying or does not answer in time."""
        child = self.child(name)
        deadline = time.monotonic() + timeout_seconds
        fatal_deaths = child.deaths + DEATHS_BEFORE_GIVING_UP
        while not (child.is_running and await child.program.is_ready()):
            is_down_for_good = not child.is_running and not self.restarting
            if is_down_for_good or child.deaths >= fatal_deaths:
                raise self._failure(child, f"exited with code {child.exit_code} before it was ready")
            if time.monotonic() > deadline:
                raise self._failure(child, f"was not ready after {timeout_seconds:.0f} s")
            await asyncio.sleep(PROBE_SECONDS)

    def _failure(self, child: Child, what: str) -> StackError:
        return StackError(f"{child.program.name} {what}; its log {end_of(child.log)}")

    async def stop(self, *names: str, grace_seconds: float) -> None:
        """End these together and keep them down."""
        children = [self._children[name] for name in names if name in self._children]
        await self._unwatch(child.program.name for child in children)
        ending = [self._end(child, grace_seconds) for child in children]
        await asyncio.gather(*ending)
        for child in children:
            del self._children[child.program.name]
        self.record()

    async def _unwatch(self, names: Iterable[str]) -> None:
        watches = [self._watches.pop(name) for name in names if name in self._watches]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def _end(self, child: Child, grace_seconds: float) -> None:
        if child.identity is None or not child.is_running:
            return
        if await end([child.identity], grace_seconds=grace_seconds, first=child.program.stop_signal):
            self.report(f"{child.program.name} did not stop within {grace_seconds:.0f} s and was killed")
        await child.ended()

    def record(self) -> None:
        self.state.record(self.phase, {name: _recorded(child) for name, child in self._children.items()})

    async def _watch(self, child: Child) -> None:
        while True:
            code = await child.ended()
            child.deaths += 1
            if not self.restarting:
                return
            await self._restart(child, code)

    async def _restart(self, child: Child, code: int) -> None:
        if time.monotonic() - child.started_at > STEADY_SECONDS:
            child.restarts = 0
        delay = min(FIRST_DELAY_SECONDS * 2 ** min(child.restarts, 10), LONGEST_DELAY_SECONDS)
        self.report(
            f"{child.program.name} ended with code {code}; restart in {delay:.1f} s; log: {child.log}"
        )
        await asyncio.sleep(delay)
        if not self.restarting:
            return
        child.restarts += 1
        child.spawn()
        self.record()


def _recorded(child: Child) -> dict[str, Any]:
    process = str(child.identity) if child.identity else None
    return {"process": process, "restarts": child.restarts}
