"""Where the scoring child of a gate runs: on this machine, or on the node of a lease (`nodes.py`)."""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from schemas.base import FileRef
from services.evaluator.clients.child import OnReport, ScoringChild, ScoringCrashed, log_of
from services.evaluator.clients.files import Cache
from services.evaluator.handlers.answers import Answers
from services.evaluator.handlers.devices import Devices
from services.evaluator.model import Evaluation
from services.evaluator.scoring.order import Scores, WorkOrder


@dataclass(frozen=True)
class Scored:
    scores: Scores
    log: bytes
    """What the child wrote to its standard error; the end of it where it is long."""


class Scoring(Protocol):
    asks_engines: bool
    """Whether engines of serving may be asked for answers."""

    async def score(
        self, evaluation: Evaluation, order: WorkOrder, files: Sequence[FileRef], on_report: OnReport
    ) -> Scored:
        """Carry out an order of the evaluation to its end, handing over the child's reports.

        order: names what it reads by keys in S3. files: those of rows. The same order again continues with what was
        scored of it. Raises ScoringCrashed, with the child's log, and DevicesLost.
        """

    async def forget(self, evaluation: Evaluation, order: WorkOrder) -> None:
        """Remove what is kept of an order for another try: its evaluation has a result."""


class LocalScoring:
    """Scoring by a child of this process, on devices of this machine."""

    asks_engines = True

    def __init__(self, cache: Cache, child: ScoringChild, *, devices: Devices, answers: Answers) -> None:
        self._cache = cache
        self._child = child
        self._devices = devices
        self._answers = answers

    async def score(
        self, evaluation: Evaluation, order: WorkOrder, files: Sequence[FileRef], on_report: OnReport
    ) -> Scored:
        version = evaluation.version
        assert version is not None, f"{evaluation.eval_id} runs without a version"
        placed = await self._cache.place(order, files)
        work_dir = self._work_dir(evaluation, order)
        try:
            async with (
                self._devices.leased(evaluation, work_dir, order.num_devices or 1) as environment,
                self._answers.given(evaluation.eval_id, version, placed, work_dir, on_report) as follow,
            ):
                scores = await self._child.score(placed, work_dir, follow, environment)
        except ScoringCrashed as crash:
            raise ScoringCrashed(str(crash), log=log_of(work_dir)) from crash
        return Scored(scores, log_of(work_dir))

    async def forget(self, evaluation: Evaluation, order: WorkOrder) -> None:
        await asyncio.to_thread(shutil.rmtree, self._work_dir(evaluation, order), ignore_errors=True)

    def _work_dir(self, evaluation: Evaluation, order: WorkOrder) -> Path:
        return self._cache.work_dir(f"{evaluation.eval_id}-{order.sha256}")
