"""The training processes of one attempt, on all its nodes: steps, saves, the stop that all agree on."""

from typing import TYPE_CHECKING

from schemas.base import FailureClass
from services.trainer_agent.protocol import BundleKind, Ended, Outcome
from tests.simulation.clock import Process, Signal, pause, wait
from tests.simulation.fast import replace

if TYPE_CHECKING:
    from tests.simulation.runner import Runner
    from tests.simulation.world import World

RENDEZVOUS_SECONDS = 60.0


class Gang:
    def __init__(self, world: "World", *, nodes: int, start_step: int, num_steps: int, every: int) -> None:
        self._world = world
        self._nodes = nodes
        self._num_steps = num_steps
        self._every = every
        self._resumed_at = start_step
        self.step = start_step
        self.members: dict[int, Runner] = {}
        self.parts: dict[int, set[int]] = {}
        """Step -> nodes that have stored their parts of its bundle."""
        self.wants_stop = False
        self.is_hung = False
        self.failure: FailureClass | None = None
        """What its own code will die of."""
        self._lost = False
        self._moved = Signal()
        self._step_seconds = world.rng.choice((0.3, 1.0, 3.0))
        self._process = Process(world.clock, self._train())

    def join(self, runner: "Runner") -> None:
        self.members[runner.index] = runner
        self._moved.fire()

    def leave(self, index: int) -> None:
        """Its child is gone; the others notice when they next wait for it."""
        if self.members.pop(index, None) is not None:
            self._lost = True
            self._moved.fire()

    async def _train(self) -> None:
        if not await self._met():
            return self._end(Outcome.FAILED, FailureClass.INFRA, "not all processes met")
        await pause(self._world.rng.uniform(1.0, 10.0))
        self._progress(has_stepped=False)
        while self.step < self._num_steps:
            await self._hang()
            if self._lost:
                return await self._break()
            if self.wants_stop:
                await pause(self._world.rng.uniform(0.1, 2.0))
                self._save(BundleKind.EMERGENCY)
                return self._end(Outcome.STOPPED)
            await pause(self._step_seconds)
            if self.failure is not None:
                return self._end(Outcome.FAILED, self.failure, "training failed")
            self._advance()
        await pause(self._world.rng.uniform(0.1, 2.0))
        if self._lost:
            return await self._break()
        self._save(BundleKind.FINAL)
        return self._end(Outcome.COMPLETED)

    async def _met(self) -> bool:
        until = self._world.clock.now + RENDEZVOUS_SECONDS
        while len(self.members) < self._nodes:
            if self._world.clock.now >= until:
                return False
            await wait(self._moved, until - self._world.clock.now)
        return True

    async def _hang(self) -> None:
        while self.is_hung and self.members:
            await wait(self._moved)

    async def _break(self) -> None:
        await pause(self._world.rng.choice((0.1, 5.0, 40.0)))
        self._end(Outcome.FAILED, FailureClass.INFRA, "a peer is gone")

    def _advance(self) -> None:
        self.step += 1
        self._progress(has_stepped=True)
        if self.step % self._every == 0 and self.step < self._num_steps:
            self._save(BundleKind.PERIODIC)

    def _progress(self, *, has_stepped: bool) -> None:
        now = self._world.clock.now
        for runner in list(self.members.values()):
            runner.progress = replace(
                runner.progress,
                moved_at=now,
                step=self.step,
                num_steps=self._num_steps,
                has_stepped=has_stepped,
            )
            if has_stepped:
                runner.stepped()

    def _save(self, kind: BundleKind) -> None:
        is_reused = self.step == self._resumed_at and self.step > 0
        for runner in list(self.members.values()):
            runner.saved(kind, self.step, is_reused=is_reused)

    def _end(self, outcome: Outcome, failure: FailureClass | None = None, message: str = "") -> None:
        ended = Ended(outcome=outcome, failure_class=failure, message=message, last_step=self.step)
        for runner in list(self.members.values()):
            runner.child_ended(ended)
        self.members.clear()
