"""The backend of one machine: a node is a process group of its own that outlives the provisioner.

Beside the files of every backend (`folders.py`) a node's folder has `pid`, "<pid> <start time>", written by the node
itself, once, and `runner.log`.
"""

import asyncio
import platform
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from services.provisioner.backends.folders import (
    AttemptFolders,
    exit_code,
    have_keys,
    is_stopped,
    key_env,
    make_node,
    nodes_of,
    notice_deadline,
    read,
    withdraw,
)
from services.provisioner.backends.polling import poll
from services.provisioner.backends.protocol import (
    AttemptSpec,
    AttemptStatus,
    BackendFailed,
    Cause,
    Member,
    MemberState,
    SpecConflict,
)
from services.provisioner.model import node_id
from services.provisioner.node_keys import NodeKeys
from shared.env_file import read_env_file
from shared.files import write_whole
from shared.processes.ending import ask_to_end, kill_all, kill_marked
from shared.processes.environment import inherited
from shared.processes.identity import Identity, marked
from shared.processes.spawn import Detached

POLL_SECONDS = 0.2
RESYNC_POLLS = 25
START_SECONDS = 30.0
KILL_SECONDS = 10.0
ADDRESS = "127.0.0.1"
"""At which nodes of this machine reach each other."""


class LocalBackend:
    """Backend of processes on this machine."""

    def __init__(
        self, nodes_dir: Path, *, runner_env_file: Path, node_keys: NodeKeys, logs_retention: timedelta
    ) -> None:
        self._folders = AttemptFolders(nodes_dir, logs_retention=logs_retention)
        self._runner_env_file = runner_env_file
        self._node_keys = node_keys
        self._detached = Detached()

    async def start(self, spec: AttemptSpec) -> None:
        await asyncio.to_thread(self._start, spec)
        await self._until_started(spec)

    async def inspect(self, name: str) -> AttemptStatus | None:
        return await asyncio.to_thread(_inspect, self._folders.folder(name))

    async def list_owned(self) -> list[AttemptStatus]:
        return await asyncio.to_thread(lambda: list(self._list_owned()))

    def watch(self) -> AsyncIterator[AttemptStatus]:
        return poll(self.list_owned, period_seconds=POLL_SECONDS, resync_polls=RESYNC_POLLS)

    async def machines(self, pool: str) -> frozenset[str]:
        return frozenset({platform.node()})

    async def notify(self, name: str, index: int, deadline: datetime) -> None:
        await asyncio.to_thread(_notify, self._folders.folder(name) / str(index), deadline)

    async def end(self, name: str, index: int) -> None:
        node = self._folders.folder(name) / str(index)
        withdraw(node)
        identity = _identity(node)
        if left := await asyncio.to_thread(_kill, identity, _mark(name, index)):
            raise BackendFailed(f"node {node_id(name, index)}: processes {left} survive SIGKILL")

    async def stop(self, name: str, grace_seconds: float) -> None:
        root = self._folders.stop(name)
        if root is None:
            return
        nodes = nodes_of(root)
        if grace_seconds > 0:
            leaders = [leader for node in nodes if (leader := _identity(node))]
            await ask_to_end(leaders, grace_seconds=grace_seconds, first=signal.SIGTERM)
        for node in nodes:
            withdraw(node)
        for index in range(len(nodes)):
            await self.end(name, index)

    async def forget(self, name: str) -> None:
        await asyncio.to_thread(self._folders.forget, name)

    def _start(self, spec: AttemptSpec) -> None:
        root = self._folders.claim(spec)
        for index in range(spec.nodes):
            if not (root / str(index) / "pid").exists() and not any(marked(_mark(spec.name, index))):
                self._spawn(make_node(root, index, self._node_keys.private(spec.name, index)), spec, index)

    def _spawn(self, node: Path, spec: AttemptSpec, index: int) -> None:
        environment = self._environment(node, spec, index)
        self._detached.start(
            spec.argv, node, environment=environment, log="runner.log", unless="../stopped", exit_file="exit"
        )

    def _environment(self, node: Path, spec: AttemptSpec, index: int) -> Mapping[str, str]:
        """Return what programs need, the operator's file for runners, and whose node this is."""
        return {
            **inherited("RUNNER_"),
            "RUNNER_CACHE_DIR": str(self._folders.nodes_dir / "cache"),
            **spec.given(read_env_file(self._runner_env_file)),
            **dict(spec.env),
            **spec.node_env(index),
            **spec.device_env(index),
            "RUNNER_WORK_DIR": str(node / "work"),
            "RUNNER_NOTICE_FILE": str(node / "notice"),
            "RUNNER_GRANT_FILE": str(node / "grant"),
            "RUNNER_HOST": ADDRESS,
            **key_env(node),
        }

    async def _until_started(self, spec: AttemptSpec) -> None:
        root = self._folders.folder(spec.name)
        deadline = time.monotonic() + START_SECONDS
        while not all((root / str(index) / "pid").exists() for index in range(spec.nodes)):
            if is_stopped(root):
                raise SpecConflict(f"{spec.name} was stopped while its nodes were starting")
            if time.monotonic() > deadline:
                raise BackendFailed(f"{spec.name}: not all nodes started within {START_SECONDS:.0f} s")
            await asyncio.sleep(0.01)

    def _list_owned(self) -> Iterator[AttemptStatus]:
        self._detached.reap()
        for root in self._folders.attempts():
            if status := _inspect(root):
                yield status


def _inspect(root: Path) -> AttemptStatus | None:
    if not root.is_dir():
        return None
    members = tuple(map(_member, nodes_of(root)))
    return AttemptStatus(root.name, members, has_keys=have_keys(root))


def _member(node: Path) -> Member:
    member = Member(
        int(node.name),
        MemberState.STARTING,
        notice_deadline=notice_deadline(node),
        host=platform.node(),
        address=ADDRESS,
    )
    identity = _identity(node)
    if identity is None:
        return member
    if identity.is_alive():
        return replace(member, state=MemberState.RUNNING)
    code = exit_code(node)
    cause = Cause.NODE_LOST if code is None else Cause.EXITED
    return replace(member, state=MemberState.ENDED, exit_code=code, cause=cause)


def _notify(node: Path, deadline: datetime) -> None:
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


def _identity(node: Path) -> Identity | None:
    text = read(node / "pid")
    return Identity.parse(text) if text else None
