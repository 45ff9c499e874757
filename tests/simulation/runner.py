"""A runner on its node: the life of `services/trainer_agent/runner`, with its own pure decisions."""

from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from schemas.base import FailureClass
from schemas.training import (
    RunnerStarted,
    RunnerStopped,
    StartTraining,
    StepReached,
)
from services.trainer_agent.protocol import BundleKind, Ended, Outcome
from services.trainer_agent.runner.decide import (
    ChildEnd,
    Ending,
    Move,
    Progress,
    Section,
    StopRequest,
    conclude,
    next_move,
)
from tests.simulation.clock import Process, Signal, pause, wait
from tests.simulation.door import Door
from tests.simulation.uploads import Uploader

if TYPE_CHECKING:
    from tests.simulation.engine import Node
    from tests.simulation.gang import Gang
    from tests.simulation.world import World

NOTICE_WAIT = timedelta(seconds=2)
DEFAULT_GRACE = timedelta(seconds=30)
MARGIN = timedelta(seconds=1)
FLUSH_LIMIT = timedelta(seconds=20)
LIMITS = {
    Section.SETUP: timedelta(minutes=15),
    Section.STEP: timedelta(minutes=5),
    Section.SAVE: timedelta(minutes=15),
}
LOOK_SECONDS = 10.0


class Runner(Door):
    def __init__(self, world: "World", node: "Node") -> None:
        super().__init__(world, node.journal, node.spec.job_id)
        self.node = node
        self.job_id, self.attempt, self.index = node.spec.job_id, node.spec.attempt, node.index
        self.num_nodes = node.spec.nodes
        self.fields: dict[str, Any] = {
            "job_id": self.job_id,
            "tenant": node.spec.tenant,
            "attempt": self.attempt,
            "node_index": self.index,
        }
        self.name = f"{node.node_id}#{world.next_number()}"
        self.alive = True
        self.began_at = world.clock.now
        self.is_slow = False
        """Its uploads take longer than any notice."""
        self.progress = Progress(world.clock.now)
        self.gang: Gang | None = None
        self.stop_request = StopRequest(NOTICE_WAIT)
        self._order: StartTraining | None = None
        self._ended: Ended | None = None
        self._is_stopping = False
        self._tells_first_step = True
        self._uploader: Uploader | None = None
        self._changed = Signal()
        self._processes: list[Process] = []
        self._spawn(self._life())

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self._processes.append(Process(self._world.clock, work))

    # What the world does to it.

    def kill(self) -> None:
        if not self.alive:
            return
        self.alive = False
        for process in self._processes:
            process.kill()
        if self._uploader:
            self._uploader.abort()
        if self.gang:
            self.gang.leave(self.index)
        self.shut()

    def take_notice(self, deadline: datetime | None = None) -> None:
        """SIGTERM."""
        self.stop_request = self.stop_request.with_notice(
            deadline, default_grace=DEFAULT_GRACE, now=self._world.clock.now
        )
        self._changed.fire()

    def _exit(self, code: int) -> None:
        self._world.note(f"{self.name} exits with {code}")
        self.kill()
        self._world.engine.exited(self.node, code)

    # Its life.

    async def _life(self) -> None:
        if not self._journal.reports:
            self.report(RunnerStarted(**self.fields, host="h", port=1, node_id=self.node.node_id))
        self.listen()
        self._spawn(self._send_reports())
        self._spawn(self._beat())
        self._spawn(self._fence())
        ending = await self._attend()
        if ending is not None:
            self.report(_last_word(self.fields, ending))
        while self._journal.unacknowledged:
            await pause(0.5)
        word = self._journal.last_word
        assert word is not None
        self._exit(Ending(Outcome(word.outcome), 0).exit_code)

    async def _attend(self) -> Ending | None:
        if self._journal.last_word is not None:
            return None
        if self._journal.has_started_child:
            message = "the runner was started again while its child trained"
            return Ending(Outcome.FAILED, 0, FailureClass.INFRA, message)
        while self._order is None:
            if self._is_asked():
                return self._stopped("before training began")
            await wait(self._changed, self._patience())
        return await self._train(self._order)

    async def _train(self, start: StartTraining) -> Ending:
        fetched_at = self._world.clock.now + self._world.rng.uniform(0.2, 5.0)
        while (left := fetched_at - self._world.clock.now) > 0:
            if self._is_asked():
                return self._stopped("while inputs were fetched")
            await wait(self._changed, min(left, self._patience() or left))
        if self._world.faults.strikes("fetch fails") or not self._world.can_resume(self.job_id, start):
            return Ending(Outcome.FAILED, 0, FailureClass.INFRA, "inputs could not be fetched")
        self._journal.has_started_child = True
        self._world.checker.training.child_started(self.job_id, self.attempt, self.index)
        self._uploader = Uploader(self._world, self, start.resume)
        self.progress = Progress(self._world.clock.now)
        self.gang = self._world.gang_of(start)
        self.gang.join(self)
        return await self._session()

    async def _session(self) -> Ending:
        assert self.gang is not None
        assert self._uploader is not None
        move = await self._watch()
        section = self.progress.section(stopping=self._is_stopping)
        if self._ended is None:
            self.gang.leave(self.index)
        bundle = await self._store_rest()
        end = ChildEnd(self._ended, 1, (1,), 0, move=move, section=section)
        return conclude(end, last_step=self.progress.step, bundle=bundle, puts_manifest=self.index == 0)

    async def _watch(self) -> Move:
        assert self.gang is not None
        while self._ended is None:
            move = next_move(
                self.stop_request,
                self.progress,
                LIMITS,
                has_asked=self._is_stopping,
                margin=MARGIN,
                now=self._world.clock.now,
            )
            if move in (Move.END_AT_DEADLINE, Move.END_AS_HUNG):
                return move
            if move is Move.ASK_TO_STOP:
                self.gang.wants_stop = True
                self._is_stopping = True
            await wait(self._changed, self._next_look())
        return Move.NONE

    async def _store_rest(self) -> Any:
        assert self._uploader is not None
        began = self._world.clock.now
        while self._uploader.is_busy:
            deadline = self._upload_deadline(began)
            left = None if deadline is None else deadline - self._world.clock.now
            if left is not None and left <= 0:
                self._uploader.abort()
                break
            await self._uploader.changed(min(left or 1.0, 1.0))
        return self._uploader.last

    def _upload_deadline(self, began: float) -> float | None:
        if self.stop_request.deadline is not None and self._is_asked():
            return self.stop_request.deadline - MARGIN.total_seconds()
        if self._ended is not None and self._ended.outcome is not Outcome.FAILED:
            return None
        return began + FLUSH_LIMIT.total_seconds()

    def _is_asked(self) -> bool:
        return self.stop_request.is_asked(self._world.clock.now)

    def _patience(self) -> float | None:
        return 1.0 if self.stop_request.noticed_at is not None else None

    def _next_look(self) -> float:
        deadline = self.stop_request.deadline
        if deadline is None:
            return LOOK_SECONDS
        left = deadline - MARGIN.total_seconds() - self._world.clock.now
        return max(0.01, min(left, 1.0 if not self._is_stopping else LOOK_SECONDS))

    def _stopped(self, when: str) -> Ending:
        return Ending(Outcome.STOPPED, 0, message=f"stopped {when}: {self.stop_request.reason}")

    # What its child says.

    def stepped(self) -> None:
        if self._tells_first_step and self.index == 0:
            self._tells_first_step = False
            steps = self.progress
            self.report(StepReached(**self.fields, step=steps.step, num_steps=steps.num_steps))

    def saved(self, kind: BundleKind, step: int, *, is_reused: bool) -> None:
        assert self._uploader is not None
        self._uploader.offer(kind, step, is_reused=is_reused)

    def child_ended(self, ended: Ended) -> None:
        self._ended = ended
        self._changed.fire()

    def parts_of(self, step: int) -> set[int]:
        assert self.gang is not None
        return self.gang.parts.setdefault(step, set())

    def _take(self, directive: Any, written_at: datetime) -> None:
        self.stop_request = self.stop_request.after(directive, written_at, now=self._world.clock.now)
        if isinstance(directive, StartTraining):
            self._order = self._order or directive
        self._changed.fire()


def _last_word(fields: dict[str, Any], ending: Ending) -> RunnerStopped:
    return RunnerStopped(
        **fields,
        outcome=ending.outcome.value,
        failure_class=ending.failure_class,
        message=ending.message,
        last_step=ending.last_step,
        bundle=ending.bundle,
        exit_code=ending.return_code,
    )
