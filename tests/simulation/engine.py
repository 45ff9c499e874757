"""An engine that holds nodes for attempts, after the provisioner's `Backend`, and that may lie about them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from services.provisioner.backends.protocol import (
    AttemptSpec,
    AttemptStatus,
    BackendFailed,
    Member,
    MemberState,
    SpecConflict,
)
from services.provisioner.model import node_id
from shared.nodes.fence import Grant
from tests.simulation.clock import Signal, pause, wait
from tests.simulation.door import FENCE_AFTER
from tests.simulation.journal import Journal
from tests.simulation.runner import Runner

if TYPE_CHECKING:
    from tests.simulation.world import World

RESYNC_SECONDS = 30.0
SLACK_SECONDS = 2.0
KILLED = 137


@dataclass
class Node:
    """A machine: its disk outlives the runner on it."""

    name: str
    spec: AttemptSpec
    index: int
    journal: Journal = field(default_factory=Journal)
    runner: Runner | None = None
    state: MemberState = MemberState.STARTING
    exit_code: int | None = None
    cut_off_at: float | None = None
    """Since when the engine takes it for lost, reaches its process no more, and its runner cannot read the grant."""
    is_granted: bool = True
    grant_changed: Signal = field(default_factory=Signal)

    @property
    def node_id(self) -> str:
        return node_id(self.name, self.index)

    @property
    def is_cut_off(self) -> bool:
        return self.cut_off_at is not None

    def read_grant(self, now: float) -> Grant:
        if self.cut_off_at is not None:
            return Grant(read_at=self.cut_off_at)
        return Grant(read_at=now, is_withdrawn=not self.is_granted)

    def withdraw(self) -> None:
        self.is_granted = False
        self.grant_changed.fire()


class Engine:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = world.rng
        self.attempts: dict[str, list[Node]] = {}
        self.late: set[str] = set()
        """Names that it may come to have after it said that it could not."""
        self._stopped: set[str] = set()
        self._changed = Signal()
        self._dirty: dict[str, None] = {}
        self.runners: list[Runner] = []
        """All that live, whether the engine knows of them or not."""

    async def start(self, spec: AttemptSpec) -> None:
        faults = self._world.faults
        await pause(self._rng.uniform(0.1, 3.0))
        if faults.strikes("create refused"):
            raise BackendFailed("the engine is busy")
        if faults.strikes("create comes late"):
            self.late.add(spec.name)
            self._world.clock.after(self._rng.uniform(1.0, 400.0), self._hold, spec)
            raise BackendFailed("the engine did not answer in time")
        if spec.name in self._stopped:
            raise SpecConflict(f"{spec.name} was stopped before")
        self._hold(spec)
        if faults.strikes("create answer lost"):
            raise BackendFailed("the answer was lost")

    async def inspect(self, name: str) -> AttemptStatus | None:
        return self._status(name) if name in self.attempts else None

    async def list_owned(self) -> list[AttemptStatus]:
        await pause(0.1)
        return [self._status(name) for name in self.attempts]

    async def watch(self) -> AsyncIterator[AttemptStatus]:
        self._dirty |= dict.fromkeys(self.attempts)
        while True:
            while self._dirty:
                name = next(iter(self._dirty))
                del self._dirty[name]
                await pause(self._world.hop())
                if name in self.attempts:
                    yield self._status(name)
            await wait(self._changed, RESYNC_SECONDS)
            if not self._dirty:
                self._dirty |= dict.fromkeys(self.attempts)

    async def machines(self, pool: str) -> frozenset[str]:
        raise NotImplementedError("the pools here say their nodes")

    async def notify(self, name: str, index: int, deadline: datetime) -> None:
        await pause(self._world.hop())
        node = self._node(name, index)
        if node and node.runner and not node.is_cut_off:
            node.runner.take_notice(deadline)

    async def end(self, name: str, index: int) -> None:
        await pause(self._world.hop())
        if node := self._node(name, index):
            self.kill(node)

    async def stop(self, name: str, grace_seconds: float) -> None:
        await pause(self._world.hop())
        if self._world.faults.strikes("stop fails"):
            raise BackendFailed("the engine is busy")
        self._stopped.add(name)
        nodes = self.attempts.get(name, [])
        if grace_seconds and any(node.state is not MemberState.ENDED for node in nodes):
            await pause(grace_seconds)
        for node in nodes:
            if node.runner and not node.is_cut_off:
                self._world.checker.nodes.ends(node.runner)
            self.kill(node)
        await self._until_fenced(nodes)

    async def forget(self, name: str) -> None:
        await pause(self._world.hop())
        self.attempts.pop(name, None)

    async def _until_fenced(self, nodes: list[Node]) -> None:
        """A process that cannot be seen has ended when it has not read its grant for so long."""
        last = max((node.cut_off_at for node in nodes if node.cut_off_at is not None), default=None)
        if last is not None and self._world.switches.waits_for_the_fence:
            await pause(max(0.0, last + FENCE_AFTER.total_seconds() + SLACK_SECONDS - self._world.clock.now))

    # What happens to nodes.

    def _hold(self, spec: AttemptSpec) -> None:
        """Has nodes from now on, even of a name that was stopped: that lie makes orphans."""
        if spec.name in self.attempts:
            return
        is_granted = spec.name not in self._stopped
        nodes = [Node(spec.name, spec, index, is_granted=is_granted) for index in range(spec.nodes)]
        self.attempts[spec.name] = nodes
        self._world.note(f"engine: {spec.name} has {spec.nodes} nodes")
        if self._world.faults.strikes("runner never starts"):
            return
        for node in nodes:
            self._world.clock.after(self._rng.uniform(0.5, 8.0), self.boot, node)

    def boot(self, node: Node) -> None:
        """Start a runner, unless the node has gone meanwhile."""
        if node.state is MemberState.ENDED or (node.runner and node.runner.alive):
            return
        node.state = MemberState.RUNNING
        node.runner = Runner(self._world, node)
        self.runners.append(node.runner)
        self._tell(node)

    def exited(self, node: Node, code: int) -> None:
        """Its runner ended by itself."""
        if not node.is_cut_off and node.state is not MemberState.ENDED:
            node.state, node.exit_code = MemberState.ENDED, code
            self._tell(node)

    def kill(self, node: Node) -> None:
        node.withdraw()
        if node.is_cut_off:
            return
        if node.runner:
            node.runner.kill()
        if node.state is not MemberState.ENDED:
            node.state, node.exit_code = MemberState.ENDED, KILLED
            self._tell(node)

    def lose(self, node: Node) -> None:
        """Take the node for lost, while its process lives on."""
        node.cut_off_at = node.cut_off_at or self._world.clock.now
        node.grant_changed.fire()
        node.state = MemberState.ENDED
        self._tell(node)

    def has(self, name: str) -> bool:
        return name in self.attempts

    def live_runners(self) -> list[Runner]:
        self.runners = [runner for runner in self.runners if runner.alive]
        return self.runners

    def _tell(self, node: Node) -> None:
        self._dirty[node.name] = None
        self._changed.fire()

    def _node(self, name: str, index: int) -> Node | None:
        return next((node for node in self.attempts.get(name, []) if node.index == index), None)

    def _status(self, name: str) -> AttemptStatus:
        members = (Member(node.index, node.state, node.exit_code) for node in self.attempts[name])
        return AttemptStatus(name, tuple(members))
