"""The life of a runner: report, wait for the gang, fetch, train, store, report how it ended."""

import asyncio
import math
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from typing import Any, TypeVar

from schemas.base import FailureClass
from schemas.training import RunnerHeartbeat, RunnerStarted, RunnerStopped, StartTraining
from services.trainer_agent.protocol import Outcome, TrainingOrder
from services.trainer_agent.runner.bundles import Identity, Uploader
from services.trainer_agent.runner.channel import Channel
from services.trainer_agent.runner.child import KILL_SECONDS, mark
from services.trainer_agent.runner.decide import Ending, StopRequest
from services.trainer_agent.runner.directives import DirectiveReader
from services.trainer_agent.runner.features import ReferenceUploader
from services.trainer_agent.runner.gang import OwnCertificate, meeting
from services.trainer_agent.runner.inputs import Inputs, best_before
from services.trainer_agent.runner.journal import ChildStarted, Journal
from services.trainer_agent.runner.logs import LogShipper
from services.trainer_agent.runner.metrics import MetricsBatch
from services.trainer_agent.runner.reporting import Heartbeat, Reporter, State
from services.trainer_agent.runner.session import Session
from services.trainer_agent.runner.settings import Settings
from services.trainer_agent.runner.storing import is_storage_away
from shared.errors import CorruptObject, StorageUnavailable
from shared.log import get_logger
from shared.nodes.fence import Fence, GrantReader, why_fenced
from shared.ports import free_port
from shared.processes.ending import kill_marked
from shared.retry import RetryPolicy
from shared.storage.objects import WriteOnceStore

log = get_logger(__name__)

Result = TypeVar("Result")

POLL_SECONDS = 0.1
LOG_FLUSH_SECONDS = 3.0


class Runner:
    def __init__(
        self, settings: Settings, objects: WriteOnceStore, journal: Journal, shipper: LogShipper
    ) -> None:
        self._settings = settings
        self._objects = objects
        self._journal = journal
        self._shipper = shipper
        self._runner_identity = Identity(
            settings.job_id, settings.tenant, settings.attempt, settings.node_index
        )
        self._certificate = OwnCertificate(settings.work_dir, node_id=settings.node_id)
        self._channel = Channel(settings)
        self._reporter = Reporter(self._channel, journal)
        self._metrics = MetricsBatch(
            self._channel, job_id=settings.job_id, tenant=settings.tenant, attempt=settings.attempt
        )
        self._stop_request = StopRequest(settings.notice_wait)
        self._orders: asyncio.Queue[StartTraining] = asyncio.Queue()
        self._session: Session | None = None
        self._is_fetching = False

    async def run(self) -> int:
        """Return the exit code: 0 completed, 143 ended otherwise and reported why. Raises where it cannot report."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._take_notice)
        if self._settings.notice_file.exists():
            self._take_notice()
        await self._channel.open()
        try:
            async with asyncio.TaskGroup() as group:
                background = [group.create_task(work) for work in await self._background()]
                ending = await self._attend()
                code = await self._report_end(ending)
                for task in background:
                    task.cancel()
        finally:
            await asyncio.to_thread(self._end_child)
        await self._channel.close()
        return code

    async def _background(self) -> list[Coroutine[Any, Any, None]]:
        """Return what runs all the time. If any of it fails, so does the runner, and its node is lost."""
        settings = self._settings
        if not self._journal.reports:
            self._reporter.add(self._started())
        heartbeat = Heartbeat(self._channel, every=settings.heartbeat_every)
        Fence(self._fence_reason(heartbeat), end_child=self._end_child).start()
        return [
            self._listen(),
            self._reporter.run(),
            heartbeat.run(self._heartbeat),
            self._metrics.run(every=settings.metrics_every),
            self._shipper.run(every=settings.log_every),
        ]

    def _fence_reason(self, heartbeat: Heartbeat) -> Callable[[], str]:
        """Start to read the grant, if there is one. Return the function that says why the runner must end itself."""
        settings, reader = self._settings, None
        if settings.grant_file is not None:
            reader = GrantReader(settings.grant_file, node_id=settings.node_id)
            reader.start()
        return lambda: why_fenced(
            acknowledged_at=heartbeat.acknowledged_at,
            grant=reader.grant if reader else None,
            fence_after=settings.fence_after,
            outage_limit=settings.outage_limit,
            now=time.monotonic(),
        )

    async def _attend(self) -> Ending | None:
        """Return how the attempt ended here; None where an earlier life has said so already."""
        if any(report.type == RunnerStopped.type for report in self._journal.reports):
            return None
        if self._journal.has_started_child:
            return self._restarted()
        start = await self._unless_stopped(self._orders.get())
        if start is None:
            return self._stopped("before training began")
        return await self._train(start)

    async def _train(self, start: StartTraining) -> Ending:
        self._is_fetching = True
        inputs = Inputs(
            self._objects,
            work_dir=self._settings.work_dir,
            cache_dir=self._settings.cache_dir,
            retry_policy=RetryPolicy(limit=self._settings.inputs_limit),
        )
        try:
            order = await self._unless_stopped(inputs.fetch(start))
        except (StorageUnavailable, CorruptObject, KeyError, ValueError, OSError) as error:
            message = f"inputs could not be fetched: {type(error).__name__}: {error}"
            kind = FailureClass.PLATFORM if is_storage_away(error) else FailureClass.INFRA
            return Ending(Outcome.FAILED, 0, kind, message)
        if order is None:
            return self._stopped("while inputs were fetched")
        self._journal.add(ChildStarted())
        return await self._train_with_peers(start, order)

    async def _train_with_peers(self, start: StartTraining, order: TrainingOrder) -> Ending:
        async with AsyncExitStack() as stack:
            try:
                port = await stack.enter_async_context(meeting(self._settings, start, self._certificate))
            except OSError as error:
                where = f"{self._settings.host}:{start.members[0].port}"
                message = f"node 0 does not listen at {where}, where its gang meets: {error}"
                return Ending(Outcome.FAILED, 0, FailureClass.INFRA, message)
            self._session = self._new_session(start, order)
            return await self._session.run(start, order, port=port)

    def _new_session(self, start: StartTraining, order: TrainingOrder) -> Session:
        """Return the session of a child. Node 0 reports steps and bundles for the whole gang."""
        uploader = Uploader(
            self._objects,
            order,
            self._runner_identity,
            resume=start.resume,
            best=best_before(order),
            report=self._reporter.add,
        )
        reports = self._runner_identity.node_index == 0
        return Session(
            self._settings,
            self._runner_identity,
            uploader,
            ReferenceUploader(self._objects, order),
            stop_request=lambda: self._stop_request,
            report=self._reporter.add if reports else _ignored,
            on_step=self._metrics.add if reports else _ignored,
            on_validation=self._metrics.add_validation if reports else _ignored,
        )

    async def _report_end(self, ending: Ending | None) -> int:
        """Send the last report, once the log before it is stored. Return the exit code."""
        await self._flush_log()
        await self._metrics.send()
        if ending is not None:
            log.info("runner ends", outcome=ending.outcome, message=ending.message)
            self._reporter.add(
                RunnerStopped(
                    **self._runner_identity.fields,
                    outcome=ending.outcome.value,
                    failure_class=ending.failure_class,
                    message=ending.message,
                    lost_connection=ending.lost_connection,
                    last_step=ending.last_step,
                    bundle=ending.bundle,
                    exit_code=ending.return_code,
                )
            )
        await self._reporter.all_sent()
        await self._flush_log()
        return ending.exit_code if ending else self._reported_exit_code()

    async def _listen(self) -> None:
        # One that starts again in its old folder has reported its start before, and counts as the same runner.
        reader = DirectiveReader(self._settings, report_id=self._journal.reports[0].id)
        async for answer in reader.follow():
            self._channel.origin = answer.origin
            for directive in answer.directives:
                log.info("directive", type=directive.type)
                self._stop_request = self._stop_request.after(directive, answer.time, now=time.monotonic())
            if answer.start is not None:
                self._orders.put_nowait(answer.start)

    async def _unless_stopped(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Return the work's result; None, with the work cancelled, where a stop is asked for before it is done."""
        task = asyncio.ensure_future(work)
        while not task.done():
            if self._stop_request.is_asked(time.monotonic()):
                task.cancel()
                await asyncio.wait({task})
                return None
            await asyncio.wait({task}, timeout=POLL_SECONDS)
        return task.result()

    async def _flush_log(self) -> None:
        """Store the log, but not at the cost of the last report: in at most half of the time that is left."""
        deadline = self._stop_request.deadline
        left = math.inf if deadline is None else deadline - time.monotonic()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._shipper.ship(), max(0.0, min(LOG_FLUSH_SECONDS, left / 2)))

    def _take_notice(self) -> None:
        """Handle SIGTERM: the node goes away. The file says when; without one, the usual grace is assumed."""
        now, grace = time.monotonic(), self._settings.default_grace
        self._stop_request = self._stop_request.with_notice(
            self._notice_deadline(), default_grace=grace, now=now
        )
        assert self._stop_request.notice_deadline is not None, "a notice has a deadline"
        log.warning("notice: the node goes away", seconds=self._stop_request.notice_deadline - now)

    def _notice_deadline(self) -> datetime | None:
        try:
            return datetime.fromisoformat(self._settings.notice_file.read_text().strip())
        except (FileNotFoundError, ValueError):
            return None

    def _heartbeat(self) -> RunnerHeartbeat:
        step = self._session.step if self._session else 0
        return RunnerHeartbeat(**self._runner_identity.fields, step=step, state=self._state())

    def _state(self) -> State:
        if self._session is not None:
            return "stopping" if self._session.is_stopping else "training"
        return "fetching" if self._is_fetching else "waiting"

    def _started(self) -> RunnerStarted:
        settings = self._settings
        port = free_port(settings.host)
        return RunnerStarted(
            **self._runner_identity.fields,
            host=settings.host,
            port=port,
            node_id=settings.node_id,
            certificate=self._certificate.text,
        )

    def _stopped(self, when: str) -> Ending:
        return Ending(Outcome.STOPPED, 0, message=f"stopped {when}: {self._stop_request.reason}")

    def _restarted(self) -> Ending:
        self._end_child()
        message = "the runner was started again while its child trained"
        return Ending(Outcome.FAILED, 0, FailureClass.INFRA, message)

    def _reported_exit_code(self) -> int:
        stopped_report = next(report for report in self._journal.reports if report.type == RunnerStopped.type)
        return Ending(Outcome(str(stopped_report.payload["outcome"])), 0).exit_code

    def _end_child(self) -> None:
        if left := kill_marked(mark(self._settings.node_id), timeout_seconds=KILL_SECONDS):
            log.error("processes of the child survive SIGKILL", pids=left)


def _ignored(_: object) -> None:
    """Ignore what node 0 reports."""
