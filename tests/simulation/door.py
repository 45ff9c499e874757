"""A runner's doors: reports to the log until they are acknowledged, heartbeats, directives, and the fence."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from schemas.node import EXIT_FENCED
from schemas.topics import AGENT_DIRECTIVES
from schemas.training import RunnerHeartbeat, RunnerReport
from services.trainer_agent import decide
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
    """After `runner/channel.py`, `directives.py` and `reporting.py`; a Runner is what stands behind it."""

    name: str
    job_id: str
    attempt: int
    index: int
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
        self._directives = decide.Directives()
        self._questions = 0
        """Those that are under way to the control side."""
        number = world.log.number_of(AGENT_DIRECTIVES, job_id)
        self._partition = world.log.partition(AGENT_DIRECTIVES.name, number)

    @property
    def is_cut_off(self) -> bool:
        return self._world.clock.now < max(self.cut_until, self._world.log.away_until)

    @property
    def has_read_all(self) -> bool:
        """Nothing is on its way between it and the control side."""
        return bool(self._journal.reports) and not self._questions and not self._journal.unacknowledged

    def listen(self) -> None:
        """What the control side writes down, it answers; its record only says when there is something."""
        self._partition.readers.append(self._ask)
        self._ask()

    def shut(self) -> None:
        if self._ask in self._partition.readers:
            self._partition.readers.remove(self._ask)

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

    def _ask(self) -> None:
        self._questions += 1
        self._world.clock.after(self._world.hop(), self._take_answer)

    def _take_answer(self) -> None:
        if not self.alive:
            return
        control = self._world.kernels["trainer_agent"]
        attempt = control.tables.get("attempt", (self.job_id, self.attempt))
        is_away = self._world.clock.now < self.cut_until or not control.up
        if is_away or attempt is None or not attempt.has_node(self.index, self.node.node_id):
            self._world.clock.after(1.0, self._take_answer)
            return
        self._questions -= 1
        directives = decide.directives_for(
            attempt,
            self.index,
            report_id=self._journal.reports[0].id,
            now=self._world.clock.utc,
            newest=control.tables.get("newest", self.job_id) or 0,
        )
        if directives == self._directives:
            return
        self._directives = directives
        for directive in (directives.start, directives.stop):
            if directive is not None:
                self._take(directive, self._world.clock.utc)
