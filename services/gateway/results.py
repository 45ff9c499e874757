"""A job's result file: the table of its steps, put to S3 like an upload and listed in `result_files`.

Written when training is over, from run.metrics, whose messages may be lost: a step that nobody heard of has no line.
"""

import asyncio
import csv
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from pydantic import JsonValue

from schemas.base import JobId, TenantName
from schemas.training import REWARDS, ROUTING, USE, BundleMetrics
from services.gateway import readmodels, removal, store, tables
from services.gateway.decide import RESULTS_PURPOSE
from services.gateway.model import MeasuredStep, RecordedSteps
from shared.log import get_logger
from shared.messaging.unit import Task, Unit
from shared.service import Service

log = get_logger(__name__)

FILENAME = "step_metrics.csv"
# The first five are OpenAI's; accuracy is not measured.
COLUMNS = (
    *("step", "train_loss", "train_accuracy", "valid_loss", "valid_mean_token_accuracy"),
    *("full_valid_loss", "learning_rate", "grad_norm", "num_tokens", "tokens_per_second", "epoch"),
    *("attempt", "time", *REWARDS, "memory_bytes", *USE, *ROUTING),
)
ROWS_AT_ONCE = 10_000
POLL_SECONDS = 0.5
PATIENCE_SECONDS = 30.0
"""Longest wait for steps that are on their way on another topic than the news of the end."""


class WriteResults(Task):
    job_id: JobId
    tenant: TenantName

    @property
    def key(self) -> str:
        return self.job_id


class OfATenantsJob(Protocol):
    """An event about a job."""

    @property
    def job_id(self) -> str: ...
    @property
    def tenant(self) -> str: ...


async def begin(event: OfATenantsJob, unit: Unit) -> None:
    """Training is over for good."""
    await unit.start_task(WriteResults(job_id=event.job_id, tenant=event.tenant))


class Results:
    def __init__(self, service: Service, scratch_dir: Path) -> None:
        self._service = service
        self._scratch_dir = scratch_dir

    def register(self) -> None:
        self._service.on_task(WriteResults, work=self.write, done=self.written, failed=self.given_up)

    async def write(self, task: WriteResults) -> str | None:
        """The id of the file; None where there is nothing to write."""
        job = await self._when_recorded(task.job_id)
        if job.has_results or not job.last_recorded:
            return None
        path = self._scratch_dir / f"results-{uuid4().hex}"
        try:
            num_rows = await self._write_table(task.job_id, path)
            ref = await removal.store_file(
                self._service,
                path,
                filename=FILENAME,
                tenant=task.tenant,
                purpose=RESULTS_PURPOSE,
                file_format=None,
                num_rows=num_rows,
            )
            return ref.file_id
        finally:
            path.unlink(missing_ok=True)

    async def written(self, task: WriteResults, file_id: str | None, unit: Unit) -> None:
        if file_id is not None and await store.confirm_file(unit.conn, file_id):
            await tables.update_job(unit.conn, task.job_id, task.tenant, result_files=[file_id])

    async def given_up(self, task: WriteResults, error: Exception, unit: Unit) -> None:
        log.error("result file not written", job_id=task.job_id, error=f"{type(error).__name__}: {error}")

    async def _when_recorded(self, job_id: str) -> RecordedSteps:
        """The job once its last step is recorded, or as it is when that takes too long."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            job = await readmodels.recorded_steps(self._service.database, job_id)
            assert job is not None, "the event that began this task made the job's row"
            if job.last_recorded >= job.last_step or time.monotonic() > until:
                return job
            await asyncio.sleep(POLL_SECONDS)

    async def _write_table(self, job_id: str, path: Path) -> int:
        """How many lines it has, with the heading."""
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            num_rows, after = 1, 0
            while steps := await readmodels.steps_with_validation(
                self._service.database, job_id, after=after, limit=ROWS_AT_ONCE
            ):
                writer.writerows(lines(steps))
                num_rows, after = num_rows + len(steps), steps[-1].step
        return num_rows


def lines(steps: Iterable[MeasuredStep]) -> Iterator[list[JsonValue]]:
    """Yield the lines of the table; a cell is empty where something was not measured."""
    for step in steps:
        measured = step.validation or step.measured or BundleMetrics()
        numbers = step.metrics | {
            "step": step.step,
            "attempt": step.attempt,
            "train_loss": step.metrics["loss"],
            "valid_loss": measured.valid_loss,
            "full_valid_loss": measured.full_valid_loss,
        }
        yield [numbers.get(column) for column in COLUMNS]
