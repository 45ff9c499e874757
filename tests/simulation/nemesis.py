"""What happens to nodes, runners and services while nobody asks for it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from schemas.base import FailureClass
from tests.simulation.clock import Process, pause
from tests.simulation.journal import Journal
from tests.simulation.runner import Runner

if TYPE_CHECKING:
    from tests.simulation.world import World

FAILURES = (
    FailureClass.INFRA,
    FailureClass.INTERNAL,
    FailureClass.NUMERIC,
    FailureClass.OOM,
    FailureClass.USER,
)


ACTS = (
    "node dies",
    "node lost, process alive",
    "dies unseen",
    "SIGTERM unannounced",
    "cut off for a moment",
    "cut off for long",
    "log away",
    "child hangs",
    "child fails",
    "runner restarts",
    "runner starts on an empty disk",
)


class Nemesis:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = world.rng
        self._acts: dict[str, Callable[[Runner], None]] = dict(
            zip(
                ACTS,
                (
                    self.node_dies,
                    self.node_lost,
                    self.dies_unseen,
                    self.sigterm,
                    self.cut_off,
                    self.cut_off_long,
                    self.log_away,
                    self.child_hangs,
                    self.child_fails,
                    self.restarts,
                    self.starts_again,
                ),
                strict=True,
            )
        )

    def strike(self, kind: str) -> bool:
        """Do it to some live runner; False where there is none."""
        victims = self._world.engine.live_runners()
        if not victims:
            return False
        victim = self._rng.choice(victims)
        self._world.note(f"nemesis: {kind} at {victim.name}")
        self._world.faults.count(kind)
        self._acts[kind](victim)
        return True

    def begin(self, every: float) -> Process:
        async def go_on() -> None:
            while self._world.faults.active:
                await pause(self._rng.expovariate(1 / every))
                if self._world.faults.active:
                    self._act()

        return Process(self._world.clock, go_on())

    def _act(self) -> None:
        if self._rng.random() < 0.3:
            kernel = self._rng.choice(list(self._world.kernels.values()))
            kernel.crash(self._rng.choice((1.0, 10.0, 40.0, 100.0, 1000.0)))
        elif self._rng.random() < 0.1:
            self._world.replicas.dead.update(self._world.replicas.specs)
        else:
            self.strike(self._rng.choice(ACTS))

    def node_dies(self, runner: Runner) -> None:
        self._world.engine.kill(runner.node)

    def node_lost(self, runner: Runner) -> None:
        self._world.engine.lose(runner.node)

    def dies_unseen(self, runner: Runner) -> None:
        """The engine continues to show a process that is not there."""
        runner.kill()

    def sigterm(self, runner: Runner) -> None:
        """The node goes away, and only its runner is told."""
        runner.take_notice()
        self._world.clock.after(30.0, self._world.engine.kill, runner.node)

    def cut_off(self, runner: Runner) -> None:
        runner.cut_until = self._world.clock.now + self._rng.uniform(1, 14)

    def cut_off_long(self, runner: Runner) -> None:
        runner.cut_until = self._world.clock.now + self._rng.uniform(16, 200)

    def log_away(self, runner: Runner) -> None:
        self._world.log.away_until = self._world.clock.now + self._rng.uniform(16, 900)

    def child_hangs(self, runner: Runner) -> None:
        if runner.gang:
            runner.gang.is_hung = True

    def child_fails(self, runner: Runner) -> None:
        if runner.gang:
            runner.gang.failure = self._rng.choice(FAILURES)

    def restarts(self, runner: Runner) -> None:
        """As an engine does that was told not to: the same disk, a new process."""
        runner.kill()
        self._world.clock.after(self._rng.uniform(0.5, 8), self._world.engine.boot, runner.node)

    def starts_again(self, runner: Runner) -> None:
        runner.node.journal = Journal()
        self.restarts(runner)
