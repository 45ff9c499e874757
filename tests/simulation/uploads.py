"""Bundles on their way to S3, after `services/trainer_agent/runner/bundles.py`."""

from typing import TYPE_CHECKING
from zlib import crc32

from schemas.base import BestBundle, BundleRef
from schemas.training import BundleKind as ReportedKind
from schemas.training import BundleUploaded
from services.trainer_agent.protocol import BundleKind
from tests.simulation.clock import Process, Signal, pause, wait

if TYPE_CHECKING:
    from tests.simulation.runner import Runner
    from tests.simulation.world import World

PATIENCE_SECONDS = 60.0
LAST_PATIENCE_SECONDS = 900.0


class Uploader:
    """One bundle at a time. Only the newest periodic one waits; a last one waits for nobody."""

    def __init__(self, world: "World", runner: "Runner", resume: BundleRef | None) -> None:
        self._world = world
        self._runner = runner
        self._resume = resume
        self._queued: int | None = None
        self._task: Process | None = None
        self._stored: dict[int, BundleRef] = {}
        self._best = resume and world.storage.best.get((runner.job_id, resume))
        self._idle = Signal()
        self.last: BundleRef | None = None

    def offer(self, kind: BundleKind, step: int, *, is_reused: bool) -> None:
        if is_reused:
            self.last = self._resume
        elif kind is BundleKind.PERIODIC:
            self._queued = step
            self._take_next()
        elif step in self._stored:
            self.last = self._stored[step]
        else:
            self._begin(kind, step)

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    async def changed(self, seconds: float | None) -> None:
        await wait(self._idle, seconds)

    def abort(self) -> None:
        self._queued = None
        if self._task is not None:
            self._task.kill()
            self._task = None
        self._idle.fire()

    def _take_next(self) -> None:
        if self._task is not None:
            return
        step, self._queued = self._queued, None
        if step is None:
            self._idle.fire()
        else:
            self._begin(BundleKind.PERIODIC, step)

    def _begin(self, kind: BundleKind, step: int) -> None:
        if self._task is not None:
            self._task.kill()
        self._queued = None
        self._task = Process(self._world.clock, self._store(kind, step), on_end=self._done)

    def _done(self, result: None) -> None:
        self._task = None
        self._take_next()

    async def _store(self, kind: BundleKind, step: int) -> None:
        world, runner = self._world, self._runner
        await pause(world.rng.uniform(0.1, 2.0))
        if runner.is_slow or world.faults.strikes("slow upload"):
            await pause(90.0 if runner.is_slow else world.rng.choice((5.0, 30.0, 90.0)))
        parts = runner.parts_of(step)
        parts.add(runner.index)
        if runner.index != 0:
            return
        began = world.clock.now
        while len(parts) < runner.num_nodes:
            waited = world.clock.now - began
            if waited > LAST_PATIENCE_SECONDS or (self._queued is not None and waited > PATIENCE_SECONDS):
                return
            await pause(2.0)
        ref = world.storage.put(runner.job_id, runner.attempt, step)
        self._stored[step] = ref
        if kind is not BundleKind.PERIODIC:
            self.last = ref
        best = self._best_after(ref)
        runner.report(
            BundleUploaded(**runner.fields, bundle=ref, kind=ReportedKind(kind), metrics={}, best=best)
        )

    def _best_after(self, ref: BundleRef) -> BestBundle | None:
        """Every second job asks for the best; one bundle in three is better than those before it."""
        world, job_id = self._world, self._runner.job_id
        if crc32(job_id.encode()) % 2:
            return None
        if self._best is None or world.rng.random() < 1 / 3:
            self._best = BestBundle(bundle=ref, valid_loss=1 / (1 + ref.step))
        world.storage.best[job_id, ref] = self._best
        return self._best
