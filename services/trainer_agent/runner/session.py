"""One child from its start to its end: its reports become ours, its bundles go to S3, its hangs are ended."""

import asyncio
import time
from collections.abc import Callable

from schemas.artifacts import ResumeCertificate
from schemas.base import BundleRef, FailureClass
from schemas.training import (
    PackingVerdict,
    RunnerPrepared,
    RunnerReport,
    StartTraining,
    StepMetrics,
    StepReached,
    StepValidated,
)
from services.trainer_agent.protocol import (
    Ended,
    Outcome,
    PreflightDone,
    ReferenceComputed,
    Report,
    ResumeChecked,
    Saved,
    Stepped,
    TrainingOrder,
    Validated,
)
from services.trainer_agent.runner.bundles import Identity, Uploader
from services.trainer_agent.runner.child import Child
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
from services.trainer_agent.runner.features import ReferenceUploader
from services.trainer_agent.runner.memory import oom_kills
from services.trainer_agent.runner.settings import Settings
from shared.clock import utc_now
from shared.log import get_logger

log = get_logger(__name__)

POLL_SECONDS = 0.1
EXIT_SECONDS = 15.0
"""Time after which a child is ended that has reported its end but does not leave."""


class Session:
    def __init__(
        self,
        settings: Settings,
        runner_identity: Identity,
        uploader: Uploader,
        references: ReferenceUploader,
        *,
        stop_request: Callable[[], StopRequest],
        report: Callable[[RunnerReport], None],
        on_step: Callable[[StepMetrics], None],
        on_validation: Callable[[StepValidated], None],
    ) -> None:
        self._settings = settings
        self._runner_identity = runner_identity
        self._uploader = uploader
        self._references = references
        self._stop_request = stop_request
        self._report = report
        self._on_step = on_step
        self._on_validation = on_validation
        self._limits = {
            Section.SETUP: settings.setup_limit,
            Section.STEP: settings.step_limit,
            Section.SAVE: settings.save_limit,
        }
        self._progress = Progress(time.monotonic())
        self._certificate: ResumeCertificate | None = None
        self._packing = PackingVerdict.OFF
        self._ended: Ended | None = None
        self._first_step_is_to_be_told = True
        self.is_stopping = False

    @property
    def step(self) -> int:
        return self._progress.step

    async def run(self, start: StartTraining, order: TrainingOrder, *, port: int | None) -> Ending:
        """`port`: on this machine, where the child's processes meet their peers."""
        killed_before = oom_kills()
        child = await Child.start(self._settings, start, order, port=port)
        self._progress = Progress(time.monotonic(), step=start.steps_before)
        move = await self._watch(child)
        section = self._progress.section(stopping=self.is_stopping)
        # What is left of the child ends here, and has reported all that it will report.
        code = await child.end()
        self._take_reports(child)
        end = ChildEnd(
            self._ended, code, child.rank_codes(), oom_kills() - killed_before, move=move, section=section
        )
        log.info("child ended", code=code, move=move, outcome=self._ended and self._ended.outcome)
        bundle = await self._store_rest()
        return conclude(
            end, last_step=self.step, bundle=bundle, puts_manifest=self._runner_identity.node_index == 0
        )

    async def _watch(self, child: Child) -> Move:
        """Watch the child until it ends, or has to be ended. Return by which move."""
        while not child.has_ended and self._take_reports(child) and not self._lingers():
            move = next_move(
                self._stop_request(),
                self._progress,
                self._limits,
                has_asked=self.is_stopping,
                margin=self._settings.deadline_margin,
                now=time.monotonic(),
            )
            if move is Move.END_AT_DEADLINE:
                return move
            if move is Move.END_AS_HUNG:
                await child.end_with_dump()
                return move
            if move is Move.ASK_TO_STOP:
                child.ask_to_stop(self._stop_request().reason)
                self.is_stopping = True
            await asyncio.sleep(POLL_SECONDS)
        return Move.NONE

    def _lingers(self) -> bool:
        return self._ended is not None and time.monotonic() - self._progress.moved_at > EXIT_SECONDS

    def _take_reports(self, child: Child) -> bool:
        """Take in the child's new reports. Return False where one of them is none."""
        try:
            for report in child.new_reports():
                self._progress = self._progress.after(report, now=time.monotonic())
                self._take(report)
        except ValueError as error:
            message = f"the training child wrote a report that is none: {error}"
            self._ended = Ended(
                outcome=Outcome.FAILED,
                failure_class=FailureClass.INTERNAL,
                message=message,
                last_step=self.step,
            )
            return False
        return True

    def _take(self, report: Report) -> None:
        match report:
            case PreflightDone(preparation=preparation):
                self._packing = preparation.packing
                self._report(RunnerPrepared(**self._runner_identity.fields, preparation=preparation))
            case ReferenceComputed():
                self._references.offer(report)
            case ResumeChecked(certificate=certificate):
                self._certificate = certificate
            case Stepped():
                self._take_step(report)
            case Validated(step=step, metrics=metrics):
                self._on_validation(StepValidated(step=step, metrics=metrics.by_name))
            case Saved():
                self._uploader.offer(report)
            case Ended():
                self._ended = report

    def _take_step(self, report: Stepped) -> None:
        if self._first_step_is_to_be_told:
            self._first_step_is_to_be_told = False
            self._report(
                StepReached(
                    **self._runner_identity.fields,
                    step=report.step,
                    num_steps=self._progress.num_steps,
                    certificate=self._certificate,
                    packing=self._packing.value,
                )
            )
        self._on_step(report.metrics(time=utc_now()))

    async def _store_rest(self) -> BundleRef | None:
        """Return the last bundle, once it is stored; None where there is none or no time for it."""
        began = time.monotonic()
        finishing = asyncio.gather(self._uploader.finish(), self._references.finish())
        while not finishing.done():
            deadline = self._upload_deadline(began)
            if deadline is not None and time.monotonic() >= deadline:
                log.warning("uploads aborted", seconds=time.monotonic() - began)
                await asyncio.gather(self._uploader.abort(), self._references.abort())
            await asyncio.wait({finishing}, timeout=POLL_SECONDS)
        return self._uploader.last

    def _upload_deadline(self, began: float) -> float | None:
        """Return the deadline of uploads, in monotonic seconds. None: only the last bundle of a completed attempt is
        under way, with no hurry."""
        stop_request = self._stop_request()
        if stop_request.deadline is not None and stop_request.is_asked(time.monotonic()):
            return stop_request.deadline - self._settings.deadline_margin.total_seconds()
        if self._ended is not None and self._ended.outcome is not Outcome.FAILED:
            return None
        return began + self._settings.flush_limit.total_seconds()
