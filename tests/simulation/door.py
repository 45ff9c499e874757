"""A runner's door to the log: reports until they are acknowledged, heartbeats, directives, and the fence."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from schemas.node import EXIT_FENCED
from schemas.topics import AGENT_DIRECTIVES
from schemas.training import RunnerHeartbeat, RunnerReport
from services.trainer_agent.runner.decide import Progress
from shared.nodes.fence import why_fenced
from tests.simulation.clock import Signal, pause, wait
from tests.simulation.journal import Journal, Reported

if TYPE_CHECKING:
    from tests.simulation.engine import Node
    from tests.simulation.gang import Gang
    from tests.simulation.world import World

HEARTBEAT_SECONDS = 5.0
FENCE_AFTER = timedelta(seconds=15)
OUTAGE_LIMIT = timedelta(hours=24)
GRANT_POLL_SECONDS = 1.0


class Door:
    """After `runner/channel.py` and `runner/reporting.py`; a Runner is what stands behind it."""

    name: str
    job_id: str
    attempt: int
    fields: dict[str, Any]
    alive: bool
    node: "Node"
    progress: Progress
    gang: "Gang | None"

    def __init__(self, world: "World", journal: Journal, job_id: str) -> None:
        self._world = world
        self._journal = journal
        self.cut_until = 0.0
        """Cut off from the log until then."""
        self._acknowledged_at = world.clock.now
        self._added = Signal()
        self._offset = 0
        number = world.log.number_of(AGENT_DIRECTIVES, job_id)
        self._partition = world.log.partition(AGENT_DIRECTIVES.name, number)

    @property
    def is_cut_off(self) -> bool:
        return self._world.clock.now < max(self.cut_until, self._world.log.away_until)

    @property
    def has_read_all(self) -> bool:
        """Nothing is on its way between it and the control side."""
        is_listening = self._journal.listening_from is not None and bool(self._journal.reports)
        return (
            is_listening and self._offset == len(self._partition.records) and not self._journal.unacknowledged
        )

    def listen(self) -> None:
        """From where an earlier life began, or from the present end."""
        if self._journal.listening_from is None:
            self._journal.listening_from = len(self._partition.records)
        self._offset = self._journal.listening_from
        self._partition.readers.append(self._read_directives)
        self._read_directives()

    def shut(self) -> None:
        if self._read_directives in self._partition.readers:
            self._partition.readers.remove(self._read_directives)

    def _exit(self, code: int) -> None:
        raise NotImplementedError

    def _take(self, directive: Any, written_at: datetime) -> None:
        raise NotImplementedError

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
                self._acknowledged_at = sent_at
            await pause(HEARTBEAT_SECONDS)

    async def _fence(self) -> None:
        """The grant is read before each look, and its withdrawal is seen up to a poll later."""
        while not why_fenced(
            acknowledged_at=self._acknowledged_at,
            grant=self.node.read_grant(self._world.clock.now),
            fence_after=FENCE_AFTER,
            outage_limit=OUTAGE_LIMIT,
            now=self._world.clock.now,
        ):
            if self.node.is_granted and not self.node.is_cut_off:
                await wait(self.node.grant_changed)
            await pause(GRANT_POLL_SECONDS)
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
                self._take(record.message, record.time)
