"""The backend of one machine: a node is a process group of its own that outlives the provisioner.

<nodes>/<attempt name>/spec.json     what was asked for, written once
                       stopped       nothing may start here any more
                       <index>/grant      id of the node, for as long as it may continue without being heard
                               pid        "<pid> <start time>", written by the node itself, once
                               exit       exit code of its runner
                               notice     when it will be ended
                               runner.log
                               work/      the runner's own
<nodes>/forgotten/<day>/<attempt name>   its end is stored: logs, exit codes, and the mark that the name is used up
"""

import asyncio
import itertools
import json
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import asdict
from datetime import date, datetime, timedelta
from pathlib import Path

from schemas.layout import is_dns_label
from services.provisioner.backends.protocol import (
    AttemptSpec,
    AttemptStatus,
    BackendFailed,
    Member,
    MemberState,
    SpecConflict,
)
from services.provisioner.model import node_id
from shared.clock import utc_now
from shared.env_file import read_env_file
from shared.files import create_whole, write_whole
from shared.processes.ending import ask_to_end, kill_all, kill_marked
from shared.processes.environment import inherited
from shared.processes.identity import Identity, marked
from shared.processes.spawn import Detached

POLL_SECONDS = 0.2
RESYNC_POLLS = 25
START_SECONDS = 30.0
KILL_SECONDS = 10.0


class LocalBackend:
    """Backend of processes on this machine."""

    def __init__(self, nodes_dir: Path, *, runner_env_file: Path, logs_retention: timedelta) -> None:
        self._nodes_dir = nodes_dir
        self._forgotten = nodes_dir / "forgotten"
        self._runner_env_file = runner_env_file
        self._logs_retention = logs_retention
        self._detached = Detached()

    async def start(self, spec: AttemptSpec) -> None:
        await asyncio.to_thread(self._start, spec)
        await self._until_started(spec)

    async def inspect(self, name: str) -> AttemptStatus | None:
        return await asyncio.to_thread(self._inspect, self._folder(name))

    async def list_owned(self) -> list[AttemptStatus]:
        return await asyncio.to_thread(lambda: list(self._list_owned()))

    async def watch(self) -> AsyncIterator[AttemptStatus]:
        seen: dict[str, AttemptStatus] = {}
        for poll in itertools.count():
            statuses = {status.name: status for status in await self.list_owned()}
            for name, status in statuses.items():
                if seen.get(name) != status or poll % RESYNC_POLLS == 0:
                    yield status
            seen = statuses
            await asyncio.sleep(POLL_SECONDS)

    async def notify(self, name: str, index: int, deadline: datetime) -> None:
        await asyncio.to_thread(self._notify, self._folder(name) / str(index), deadline)

    async def end(self, name: str, index: int) -> None:
        node = self._folder(name) / str(index)
        _withdraw(node)
        identity = _identity(node)
        if left := await asyncio.to_thread(_kill, identity, _mark(name, index)):
            raise BackendFailed(f"node {node_id(name, index)}: processes {left} survive SIGKILL")

    async def stop(self, name: str, grace_seconds: float) -> None:
        root = self._folder(name)
        if self._is_forgotten(name) and not root.exists():
            return
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        (root / "stopped").touch()
        if grace_seconds > 0:
            leaders = [leader for index in _indices(root) if (leader := _identity(root / str(index)))]
            await ask_to_end(leaders, grace_seconds=grace_seconds, first=signal.SIGTERM)
        for index in _indices(root):
            _withdraw(root / str(index))
        for index in _indices(root):
            await self.end(name, index)

    async def forget(self, name: str) -> None:
        await asyncio.to_thread(self._forget, self._folder(name))

    def _folder(self, name: str) -> Path:
        if not is_dns_label(name):
            raise SpecConflict(f"attempt name is {name[:80]!r}, expected a DNS label")
        return self._nodes_dir / name

    def _start(self, spec: AttemptSpec) -> None:
        root = self._folder(spec.name)
        self._claim(root, spec)
        for index in range(spec.nodes):
            node = root / str(index)
            node.mkdir(exist_ok=True, mode=0o700)
            if not (node / "pid").exists() and not any(marked(_mark(spec.name, index))):
                self._spawn(node, spec, index)

    def _claim(self, root: Path, spec: AttemptSpec) -> None:
        """Write the specification once; if it is there already it must be the same, and the name not used up."""
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = root / "spec.json"
        if not create_whole(path, json.dumps({"digest": spec.digest, **asdict(spec)})):
            digest = json.loads(path.read_text())["digest"]
            if digest != spec.digest:
                raise SpecConflict(f"{spec.name} exists with spec {digest}, asked for {spec.digest}")
        # Last: a folder that is moved away from here on takes the nodes that would start in it along.
        if (root / "stopped").exists() or self._is_forgotten(spec.name):
            raise SpecConflict(f"{spec.name} was stopped; a new attempt needs a new name")

    def _spawn(self, node: Path, spec: AttemptSpec, index: int) -> None:
        write_whole(node / "grant", node_id(spec.name, index))
        environment = self._environment(node, spec, index)
        self._detached.start(
            spec.argv, node, environment=environment, log="runner.log", unless="../stopped", exit_file="exit"
        )

    def _environment(self, node: Path, spec: AttemptSpec, index: int) -> Mapping[str, str]:
        """Return what programs need, the operator's file for runners, and whose node this is."""
        return {
            **inherited("RUNNER_"),
            "RUNNER_CACHE_DIR": str(self._nodes_dir / "cache"),
            **read_env_file(self._runner_env_file),
            **dict(spec.env),
            **spec.node_env(index),
            **spec.device_env(index),
            "RUNNER_WORK_DIR": str(node / "work"),
            "RUNNER_NOTICE_FILE": str(node / "notice"),
            "RUNNER_GRANT_FILE": str(node / "grant"),
        }

    async def _until_started(self, spec: AttemptSpec) -> None:
        root = self._folder(spec.name)
        deadline = time.monotonic() + START_SECONDS
        while not all((root / str(index) / "pid").exists() for index in range(spec.nodes)):
            if (root / "stopped").exists():
                raise SpecConflict(f"{spec.name} was stopped while its nodes were starting")
            if time.monotonic() > deadline:
                raise BackendFailed(f"{spec.name}: not all nodes started within {START_SECONDS:.0f} s")
            await asyncio.sleep(0.01)

    def _list_owned(self) -> Iterator[AttemptStatus]:
        self._detached.reap()
        for root in sorted(self._nodes_dir.glob("a-*")):
            if status := self._inspect(root):
                yield status

    def _inspect(self, root: Path) -> AttemptStatus | None:
        if not root.is_dir():
            return None
        return AttemptStatus(root.name, tuple(_member(root / str(index), index) for index in _indices(root)))

    def _is_forgotten(self, name: str) -> bool:
        return any((day / name).exists() for day in self._days())

    def _days(self) -> list[Path]:
        return list(self._forgotten.iterdir()) if self._forgotten.exists() else []

    def _forget(self, root: Path) -> None:
        """Free the disk; keep what explains the end, out of the way of whoever looks at what is there."""
        for index in _indices(root):
            shutil.rmtree(root / str(index) / "work", ignore_errors=True)
        if self._is_forgotten(root.name):
            shutil.rmtree(root, ignore_errors=True)
        else:
            today = self._forgotten / utc_now().date().isoformat()
            today.mkdir(parents=True, exist_ok=True, mode=0o700)
            root.rename(today / root.name)
        self._remove_old_days()

    def _remove_old_days(self) -> None:
        """Remove folders so old that no message could ask for one of their names again."""
        oldest = (utc_now() - self._logs_retention).date()
        for day in self._days():
            if date.fromisoformat(day.name) < oldest:
                shutil.rmtree(day, ignore_errors=True)

    def _notify(self, node: Path, deadline: datetime) -> None:
        write_whole(node / "notice", deadline.isoformat())
        if identity := _identity(node):
            identity.signal_group(signal.SIGTERM)


def _kill(identity: Identity | None, mark: str) -> list[int]:
    """Kill the node's processes and return the pids of those that would not go.

    The session is first: the mark is sought in what every process began with.
    """
    if identity is not None:
        kill_all(identity.session, timeout_seconds=KILL_SECONDS)
    return kill_marked(mark, timeout_seconds=KILL_SECONDS)


def _mark(name: str, index: int) -> str:
    return f"RUNNER_NODE_ID={node_id(name, index)}"


def _withdraw(node: Path) -> None:
    """Take the node's grant away: a runner without one ends itself, also where nothing else reaches it."""
    (node / "grant").unlink(missing_ok=True)


def _indices(root: Path) -> range:
    try:
        return range(json.loads((root / "spec.json").read_text())["nodes"])
    except FileNotFoundError:
        return range(0)


def _member(node: Path, index: int) -> Member:
    notice = _read(node / "notice")
    deadline = datetime.fromisoformat(notice) if notice else None
    identity = _identity(node)
    if identity is None:
        return Member(index, MemberState.STARTING)
    if identity.is_alive():
        return Member(index, MemberState.RUNNING, notice_deadline=deadline)
    code = _read(node / "exit")
    return Member(index, MemberState.ENDED, int(code) if code else None, deadline)


def _identity(node: Path) -> Identity | None:
    text = _read(node / "pid")
    return Identity.parse(text) if text else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
