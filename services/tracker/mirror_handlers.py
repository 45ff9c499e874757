"""The mirror in MLflow: facts about a job or sweep are queued in their transaction and logged afterwards."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from prometheus_client import Gauge

from services.tracker import mirror_store as store
from services.tracker.decide import mirror
from services.tracker.decide.mirror import Entry, Mirrored
from services.tracker.mirror_store import DueRun
from services.tracker.mlflow import Mlflow, MlflowUnavailable, NotTaken
from services.tracker.settings import Settings
from shared.errors import RetuneError
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.messaging.unit import Unit
from shared.service import Service

log = get_logger(__name__)

SEND_EVERY = timedelta(seconds=1)
RUNS_TOGETHER = 8
"""Runs that are logged in at once, and entries of one that are sent together."""
ENTRIES_TOGETHER = 50
WHILE_AWAY = timedelta(seconds=30)
"""Longest pause before a run is tried again while MLflow does not answer."""
AFTER_REFUSALS = timedelta(hours=1)
"""Longest pause before MLflow is asked again to take what it refused."""

RUNS_WAITING = Gauge("mlflow_runs_waiting", "Runs in which something waits to be logged")
LONGEST_WAIT = Gauge("mlflow_longest_wait_seconds", "Time for which the oldest entry waits to be logged")


class Mirror:
    """Logs jobs and sweeps in MLflow. Without an address it does nothing."""

    def __init__(self, settings: Settings) -> None:
        self._experiment_prefix = settings.mlflow_experiment_prefix
        self._mlflow = (
            Mlflow(
                settings.mlflow_url,
                username=settings.mlflow_username,
                password=settings.mlflow_password,
                token=settings.mlflow_token,
            )
            if settings.mlflow_url
            else None
        )
        self._is_away = False

    async def queue(self, fact: Mirrored, unit: Unit) -> None:
        """Have what the fact says logged in the run of its job or sweep after the commit."""
        if self._mlflow is None:
            return
        run = await store.lock_run(unit.conn, mirror.subject_of(fact), fact.tenant)
        run, entry = mirror.add(run, fact, now=unit.now)
        new = await store.add_points(unit.conn, run.subject_id, entry.of_weights)
        if (entry := mirror.without_logged(entry, new)) != Entry():
            await store.save_run(unit.conn, run)
            await store.add_entry(unit.conn, run.subject_id, entry)

    async def send(self, service: Service) -> None:
        """Log what waits, of several runs at once, until nothing is due or MLflow is away."""
        while runs := await self._due_runs(service):
            results = await asyncio.gather(*(self._send_some(service, run) for run in runs))
            self._note_absence(results)
            if self._is_away:
                return

    async def _due_runs(self, service: Service) -> list[DueRun]:
        async with service.unit() as unit:
            runs, longest = await store.measure_waiting(unit.conn, now=unit.now)
            RUNS_WAITING.set(runs)
            LONGEST_WAIT.set(longest.total_seconds())
            return await store.list_due_runs(unit.conn, now=unit.now, at_most=RUNS_TOGETHER)

    async def _send_some(self, service: Service, run: DueRun) -> RetuneError | None:
        """Log the oldest entries of a run; return why that did not work."""
        assert self._mlflow is not None, "entries are queued where there is a server"
        async with service.unit() as unit:
            number, entries = await store.list_entries(unit.conn, run.subject_id, at_most=ENTRIES_TOGETHER)
        experiment = f"{self._experiment_prefix}{run.tenant}"
        try:
            run_id = run.run_id or await self._mlflow.find_or_create_run(
                experiment, run.subject_id, run.waiting_since, parent_id=run.parent_id
            )
            await self._mlflow.log(run_id, mirror.joined(entries))
        except (MlflowUnavailable, NotTaken) as error:
            await self._put_off(service, run, error)
            return error
        failpoint("mirror.logged")
        async with service.unit() as unit:
            await store.save_sent(unit.conn, run.subject_id, run_id, up_to=number)
        return None

    async def _put_off(self, service: Service, run: DueRun, error: MlflowUnavailable | NotTaken) -> None:
        """Leave the run alone for a while, longer each time; what waits to be logged in it is kept."""
        longest = WHILE_AWAY if isinstance(error, MlflowUnavailable) else AFTER_REFUSALS
        pause = min(longest, timedelta(seconds=2 ** min(run.failures, 12)))
        async with service.unit() as unit:
            await store.save_problem(unit.conn, run.subject_id, str(error), retry_at=unit.now + pause)
        if isinstance(error, NotTaken):
            log.warning(
                "MLflow refuses what is to be logged",
                subject_id=run.subject_id,
                error=str(error),
                again_in=str(pause),
            )

    def _note_absence(self, results: Sequence[RetuneError | None]) -> None:
        problems = [each for each in results if isinstance(each, MlflowUnavailable)]
        if problems and not self._is_away:
            log.warning("MLflow is away; what is to be logged waits", error=str(problems[0]))
        if self._is_away and not problems:
            log.info("MLflow answers again")
        self._is_away = bool(problems)

    async def forget_measures(self) -> None:
        """Show nothing once another process sends: what was measured last would stay."""
        RUNS_WAITING.set(0)
        LONGEST_WAIT.set(0)

    async def close(self) -> None:
        if self._mlflow is not None:
            await self._mlflow.close()

    def register(self, service: Service) -> None:
        if self._mlflow is None:
            return

        async def send() -> None:
            await self.send(service)

        service.every(SEND_EVERY, send, singleton=True)
        service.on_lead_end(self.forget_measures)
        service.on_stop(self.close)
