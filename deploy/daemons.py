"""Daemons of a cluster on this machine for tests and for trying: each has its output in a file, and ends with us."""

import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from deploy.local.errors import StackError, end_of
from shared.processes.ending import kill_all
from shared.processes.identity import Identity
from shared.processes.spawn import ending_with_us

START_SECONDS = 20.0
KILL_SECONDS = 10.0


class Running(ABC):
    """`with` it: started, and stopped at the end of the block, also where it starts only in part."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Daemons:
    """`mark`: name of the variable by which whatever the daemons start is known."""

    def __init__(self, folder: Path, *, mark: str) -> None:
        self.folder = folder
        self._mark = mark
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], *, environment: Mapping[str, str]) -> None:
        with self.output(name).open("ab") as out:
            self._running[name] = subprocess.Popen(
                ending_with_us(command, signal.SIGKILL),
                env={**environment, self._mark: str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def output(self, name: str) -> Path:
        return self.folder / f"{name}.out"

    def kill(self, name: str) -> None:
        """End a daemon as a power cut would; what it has started runs on."""
        daemon = self._running.pop(name)
        daemon.kill()
        daemon.wait()

    def kill_all(self) -> None:
        """End all daemons with all that they have started."""
        for daemon in self._running.values():
            daemon.kill()
        for daemon in self._running.values():
            daemon.wait()
        self._running.clear()
        if left := kill_all(self._processes, timeout_seconds=KILL_SECONDS):
            raise StackError(f"processes {left} of the cluster in {self.folder} survive SIGKILL")

    def until(
        self, condition: Callable[[], bool], name: str, log: Path, *, seconds: float = START_SECONDS
    ) -> None:
        """Wait until the condition is met. Raises StackError with the end of the log."""
        deadline = time.monotonic() + seconds
        while not condition():
            if name in self._running and (code := self._running[name].poll()) is not None:
                raise StackError(f"{name} ended with {code} while it started; {end_of(log)}")
            if time.monotonic() > deadline:
                raise StackError(f"{name} did not start in {seconds:g} s; {end_of(log)}")
            time.sleep(0.05)

    def _processes(self) -> Iterator[Identity]:
        """Yield what daemons have started, with all below it.

        A slurmstepd writes its title over the beginning of its environment, which psutil then takes for empty.
        """
        mark = f"{self._mark}={self.folder}".encode()
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                if mark in environment:
                    for each in (process, *process.children(recursive=True)):
                        if identity := Identity.of(each.pid):
                            yield identity
