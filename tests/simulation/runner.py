"""A runner on its node: the life of `services/trainer_agent/runner`, with its own pure decisions."""

from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from schemas.base import FailureClass
from schemas.topics import AGENT_DIRECTIVES
from schemas.training import (
    RunnerHeartbeat,
    RunnerReport,
    RunnerStarted,
    RunnerStopped,
    StartTraining,
    StepReached,
    StopTraining,
)
from services.trainer_agent.protocol import BundleKind, Ended, Outcome
from services.trainer_agent.runner.decide import (
    EXIT_FENCED,
    ChildEnd,
    Ending,
    Move,
    Progress,
    Section,
    Wish,
    conclude,
    next_move,
)
from tests.simulation.clock import Process, Signal, pause, wait
from tests.simulation.journal import Reported
from tests.simulation.uploads import Uploader

if TYPE_CHECKING:
    from tests.simulation.engine import Node
    from tests.simulation.gang import Gang
    from tests.simulation.world import World

HEARTBEAT_SECONDS = 5.0
FENCE_SECONDS = 15.0
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


class Runner:
    def __init__(self, world: "World", node: "Node") -> None:
        self._world = world
        self.node = node
        self._journal = node.journal
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
        self.is_slow = False
        """Its uploads take longer than any notice."""
        self.cut_until = 0.0
        """Cut off from the log until then."""
        self.acknowledged_at = world.clock.now
        self.progress = Progress(world.clock.now)
        self.gang: Gang | None = None
        self.wish = Wish(NOTICE_WAIT)
        self._order: StartTraining | None = None
        self._ended: Ended | None = None
        self._is_stopping = False
        self._tells_first_step = True
        self._uploader: Uploader | None = None
        self._changed = Signal()
        self._added = Signal()
        self._offset = 0
        self._processes: list[Process] = []
        number = world.log.number_of(AGENT_DIRECTIVES, self.job_id)
        self._partition = world.log.partition(AGENT_DIRECTIVES.name, number)
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
        if self._read_directives in self._partition.readers:
            self._partition.readers.remove(self._read_directives)

    def take_notice(self, deadline: datetime | None = None) -> None:
        """SIGTERM."""
        now = self._world.clock.utc
        self.wish = self.wish.with_notice(deadline or now + DEFAULT_GRACE, now=now)
        self._changed.fire()

    def _exit(self, code: int) -> None:
        self._world.note(f"{self.name} exits with {code}")
        self.kill()
        self._world.engine.exited(self.node, code)

    @property
    def is_cut_off(self) -> bool:
        return self._world.clock.now < self.cut_until

    @property
    def has_read_all(self) -> bool:
        """Nothing is on its way between it and the control side."""
        is_listening = self._journal.listening_from is not None and bool(self._journal.reports)
        return (
            is_listening and self._offset == len(self._partition.records) and not self._journal.unacknowledged
        )

    # Its life.

    async def _life(self) -> None:
        if self._journal.listening_from is None:
            self._journal.listening_from = len(self._partition.records)
        self._offset = self._journal.listening_from
        self._partition.readers.append(self._read_directives)
        self._read_directives()
        self._spawn(self._send_reports())
        self._spawn(self._beat())
        self._spawn(self._fence())
        ending = await self._attend()
        if ending is not None:
            self.report(_last_word(self.fields, ending))
        while self._journal.unacknowledged:
            await pause(0.5)
        told = self._journal.last_word
        assert told is not None
        self._exit(Ending(Outcome(told.outcome), 0).exit_code)

    async def _attend(self) -> Ending | None:
        if self._journal.last_word is not None:
            return None
        if self._journal.has_started_child:
            message = "the runner was started again while its child trained"
            return Ending(Outcome.FAILED, 0, FailureClass.INFRA, message)
        if not self._journal.reports:
            self.report(RunnerStarted(**self.fields, host="h", port=1, node_id=self.node.node_id))
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
                self.wish,
                self.progress,
                LIMITS,
                has_asked=self._is_stopping,
                margin=MARGIN,
                now=self._world.clock.utc,
                monotonic=self._world.clock.now,
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
        began = self._world.clock.utc
        while self._uploader.is_busy:
            deadline = self._upload_deadline(began)
            left = (deadline - self._world.clock.utc).total_seconds() if deadline else None
            if left is not None and left <= 0:
                self._uploader.abort()
                break
            await self._uploader.changed(min(left or 1.0, 1.0))
        return self._uploader.last

    def _upload_deadline(self, began: datetime) -> datetime | None:
        if self.wish.deadline is not None and self._is_asked():
            return self.wish.deadline - MARGIN
        if self._ended is not None and self._ended.outcome is not Outcome.FAILED:
            return None
        return began + FLUSH_LIMIT

    def _is_asked(self) -> bool:
        return self.wish.is_asked(self._world.clock.utc)

    def _patience(self) -> float | None:
        return 1.0 if self.wish.noticed_at is not None else None

    def _next_look(self) -> float:
        deadline = self.wish.deadline
        if deadline is None:
            return LOOK_SECONDS
        left = (deadline - MARGIN - self._world.clock.utc).total_seconds()
        return max(0.01, min(left, 1.0 if not self._is_stopping else LOOK_SECONDS))

    def _stopped(self, when: str) -> Ending:
        return Ending(Outcome.STOPPED, 0, message=f"stopped {when}: {self.wish.reason}")

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

    # Its door to the log.

    def report(self, report: RunnerReport) -> None:
        """On disk before anyone may act on it."""
        self._journal.reports.append(Reported(f"{self.name}-{len(self._journal.reports)}", report))
        self._added.fire()

    async def _send_reports(self) -> None:
        while True:
            while left := self._journal.unacknowledged:
                await self._send(left[0])
            await wait(self._added)

    async def _send(self, each: Reported) -> None:
        while not each.is_acknowledged:
            while self.is_cut_off:
                await pause(1.0)
            await pause(self._world.hop())
            if self._world.faults.strikes("report held"):
                self._world.clock.after(self._world.rng.uniform(5, 100), self._arrive, each.report, each.id)
                await pause(10.0)
                continue
            self._arrive(each.report, each.id)
            each.is_acknowledged = not self._world.faults.strikes("ack lost")

    def _arrive(self, report: RunnerReport, report_id: str) -> None:
        self._world.claim(report, report_id, self.name)

    async def _beat(self) -> None:
        number, beat = 0, None
        while True:
            number += 1
            state = "waiting" if self.gang is None else "training"
            if beat is None or (beat.step, beat.state) != (self.progress.step, state):
                beat = RunnerHeartbeat(**self.fields, step=self.progress.step, state=state)
            sent_at = self._world.clock.now
            await pause(self._world.hop())
            if not self.is_cut_off:
                self._arrive(beat, f"{self.name}-beat-{number}")
                self.acknowledged_at = sent_at
            await pause(HEARTBEAT_SECONDS)

    async def _fence(self) -> None:
        while (left := self.acknowledged_at + FENCE_SECONDS - self._world.clock.now) > 0:
            await pause(left + 0.01)
        self._exit(EXIT_FENCED)

    def _read_directives(self) -> None:
        self._world.clock.after(self._world.hop(), self._take_directives)

    def _take_directives(self) -> None:
        if not self.alive:
            return
        if self.is_cut_off:
            self._world.clock.after(1.0, self._take_directives)
            return
        while self._offset < len(self._partition.records):
            record = self._partition.records[self._offset]
            self._offset += 1
            if record.key == self.job_id and record.message.attempt == self.attempt:  # type: ignore[attr-defined]
                self._take(record.message)

    def _take(self, directive: Any) -> None:
        if isinstance(directive, StartTraining):
            self._order = self._order or directive
        elif isinstance(directive, StopTraining):
            self.wish = self.wish.with_directive(directive)
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
