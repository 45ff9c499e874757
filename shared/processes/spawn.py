"""How child processes start: those that end with us, and those that outlive us. Each leads a session of its own,
so that signals to our group do not reach it, and its group can be ended with it.
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

LAUNCH = Path(__file__).with_name("launch.py")
MAX_LINE_BYTES = 16 * 1024 * 1024


def launched(command: Sequence[str], **options: Any) -> list[str]:
    """Return the command line that starts `command` with these options of `launch.py`."""
    return [sys.executable, "-I", str(LAUNCH), json.dumps(options), *command]


def own_files(
    writes: Sequence[Path], reads: Iterable[Path] = (), *, has_peers: bool = False
) -> dict[str, Any]:
    """Return the option `files`: the program has these alone beside the system's (`confine_files`)."""
    return {
        "writes": [str(path.absolute()) for path in writes],
        "reads": [str(path.absolute()) for path in reads],
        "has_peers": has_peers,
    }


def ending_with_us(command: Sequence[str], number: signal.Signals, **options: Any) -> list[str]:
    """Return the command line of a `command` that gets the signal when the thread that starts it ends."""
    return launched(command, parent=os.getpid(), signal=int(number), **options)


async def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path | None = None,
    stdout: int | None = None,
    stderr: IO[bytes] | None = None,
) -> Process:
    """Start a child with nothing on its standard input, to be followed by the caller."""
    return await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        cwd=folder,
        stdin=DEVNULL,
        stdout=stdout,
        stderr=stderr,
        limit=MAX_LINE_BYTES,
        start_new_session=True,
    )


class Detached:
    """Starts processes that outlive us, each in a folder where its pid file represents it."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def start(
        self,
        command: Sequence[str],
        folder: Path,
        *,
        environment: Mapping[str, str],
        log: str,
        unless: str | None = None,
        exit_file: str | None = None,
        files: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a process that writes <folder>/pid itself and appends its output to <folder>/<log>.

        Nothing starts where there is a pid file already, or a file `unless`; `exit_file` gets the exit code; `files`
        are the program's own (`own_files`).
        """
        given = {"unless": unless, "exit_file": exit_file, "files": files}
        options = {name: value for name, value in given.items() if value is not None}
        argv = launched(command, folder=str(folder), pid_file="pid", **options)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(folder / log), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        self._pids.add(os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsid=True))

    def reap(self) -> None:
        """Free the pids of those that ended: each is a zombie until its parent asks, or init where that is gone."""
        for pid in list(self._pids):
            try:
                has_ended = os.waitpid(pid, os.WNOHANG) != (0, 0)
            except ChildProcessError:
                has_ended = True
            if has_ended:
                self._pids.discard(pid)
