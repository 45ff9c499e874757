"""`python -m services.provisioner.backends.slurm.keeper OPTIONS INDEX HOST`: keeps a runner on one node of a job.

It starts the runner with the addresses and keys of the environment file, which is read here and nowhere else; sends
SIGTERM where its files ask for that; ends the runner when its grant is withdrawn; and writes how it ended, once
nothing of it runs any more. SIGURG asks it to look at its files at once.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.provisioner.backends.folders import is_stopped, key_env, read
from services.provisioner.backends.protocol import AttemptSpec
from services.provisioner.model import node_id
from shared.env_file import read_env_file
from shared.files import write_whole
from shared.processes.ending import kill_all
from shared.processes.environment import inherited
from shared.processes.identity import marked, with_sessions

WATCHED = (signal.SIGTERM, signal.SIGURG, signal.SIGCHLD)
LOOK_SECONDS = 1.0
KILL_SECONDS = 10.0
NOT_STARTED = 127


class Keeper:
    def __init__(self, root: Path, index: int, host: str, *, env_file: Path, work_dir: Path | None) -> None:
        self._root = root
        self._index = index
        self._host = host
        self._env_file = env_file
        self._node = root / str(index)
        self._scratch = work_dir / root.name / str(index) if work_dir else self._node / "work"
        self._cache = (work_dir or root.parent) / "cache"
        self._heard: tuple[str, bool] = ("", False)

    def run(self) -> None:
        # Python's own handlers are not needed: signals wait until they are asked for.
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        write_whole(self._node / "host", self._host)
        if is_stopped(self._root) or self._is_withdrawn:
            self._finish(None)
            return
        os.chdir(self._node)
        self._finish(self._keep(self._start()))

    @property
    def _is_withdrawn(self) -> bool:
        return not (self._node / "grant").exists()

    def _start(self) -> int | None:
        """Return the runner's pid; None where it does not start, which its log explains."""
        spec = _spec(self._root)
        self._scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self._node / "runner.log"), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        try:
            return os.posix_spawnp(
                spec.argv[0],
                spec.argv,
                self._environment(spec),
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=WATCHED,
            )
        except (OSError, ValueError) as error:
            write_whole(self._node / "runner.log", f"{spec.argv[0]} does not start: {error}\n")
            return None

    def _environment(self, spec: AttemptSpec) -> Mapping[str, str]:
        return {
            **inherited("RUNNER_"),
            "RUNNER_CACHE_DIR": str(self._cache),
            **spec.given(read_env_file(self._env_file)),
            **dict(spec.env),
            **spec.node_env(self._index),
            "RUNNER_HOST": _address(self._host),
            "RUNNER_WORK_DIR": str(self._scratch),
            "RUNNER_NOTICE_FILE": str(self._node / "notice"),
            "RUNNER_GRANT_FILE": str(self._node / "grant"),
            **key_env(self._node),
        }

    def _keep(self, pid: int | None) -> int | None:
        """Return the runner's exit code; None where it was ended here."""
        if pid is None:
            return NOT_STARTED
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if self._is_withdrawn:
                return None
            if self._is_asked():
                os.killpg(pid, signal.SIGTERM)
            signal.sigtimedwait(WATCHED, LOOK_SECONDS)

    def _is_asked(self) -> bool:
        """Return whether there is a notice, or a wish that the runner ends, that it has not heard of."""
        heard, self._heard = self._heard, (read(self._node / "notice"), (self._root / "asked").exists())
        return self._heard != heard

    def _finish(self, code: int | None) -> None:
        """End what is left of the runner; only then write how it ended."""
        mark = f"RUNNER_NODE_ID={node_id(self._root.name, self._index)}"
        left = kill_all(lambda: with_sessions(marked(mark)), timeout_seconds=KILL_SECONDS)
        if left:
            sys.exit(f"node {self._index} of {self._root.name}: processes {left} survive SIGKILL")
        if self._scratch.parent != self._node:
            shutil.rmtree(self._scratch, ignore_errors=True)
        if code is None:
            write_whole(self._node / "gone", "")
        else:
            write_whole(self._node / "exit", f"{code}\n")


def _spec(root: Path) -> AttemptSpec:
    fields: dict[str, Any] = json.loads((root / "spec.json").read_text())
    del fields["digest"]
    return AttemptSpec.from_fields(fields)


def _address(host: str) -> str:
    """Return the address at which the other nodes reach this one, as Slurm knows it; else the host's name."""
    done = subprocess.run(
        ["scontrol", "--oneliner", "show", "node", host], capture_output=True, text=True, check=False
    )
    pairs = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
    return pairs.get("NodeAddr", host)


def main() -> None:
    options, index, host = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    work_dir = Path(options["work_dir"]) if options["work_dir"] else None
    root, env_file = Path(options["root"]), Path(options["env_file"])
    Keeper(root, index, host, env_file=env_file, work_dir=work_dir).run()


if __name__ == "__main__":
    main()
