"""One run of an order on a node: its files fetched, the scoring child followed, and its outcome stored."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from schemas import layout
from services.evaluator.clients.child import ScoringChild, ScoringCrashed, log_of
from services.evaluator.clients.files import Cache
from services.evaluator.decide.nodes import why_unfit
from services.evaluator.protocol import MAX_OUTCOME_BYTES, MAX_TEXT, Outcome, StoredOutcome, Work
from services.evaluator.scoring.order import Limits
from services.evaluator.scoring.reports import PartProgressed, Report
from shared.device import device_name
from shared.device_leases import fence
from shared.errors import CorruptObject, Rejected, StorageUnavailable
from shared.log import get_logger
from shared.retry import FOR_EVER, retry_until_available
from shared.storage.objects import WriteOnceStore

log = get_logger(__name__)

LEASE_FILE = "lease"
Result = TypeVar("Result")


class Run:
    def __init__(
        self, work: Work, *, lease_id: str, cache: Cache, objects: WriteOnceStore, work_dir: Path
    ) -> None:
        """work_dir: the scoring child's, in which everything else of it is removed."""
        self.work = work
        self.order_sha256 = work.order.sha256
        self.problem = ""
        self.outcome: StoredOutcome | None = None
        self._lease_id = lease_id
        self._cache = cache
        self._objects = objects
        self._work_dir = work_dir
        self._until = 0.0
        """Monotonic time at which the lease is over."""
        self._progress: dict[tuple[str, ...], Report] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def progress(self) -> tuple[Report, ...]:
        """Return the child's newest report of each sort, and of each part and side."""
        return tuple(self._progress.values())

    def start(self, lease_seconds: float) -> None:
        self._work_dir.mkdir(parents=True, exist_ok=True)
        self.extend(lease_seconds)
        self._task = asyncio.create_task(self._carry_out())

    def extend(self, lease_seconds: float) -> None:
        """Let the child run for so long from now on."""
        self._until = time.monotonic() + lease_seconds
        fence.extend(self._work_dir / LEASE_FILE, lease_seconds)

    async def end(self) -> None:
        """End it, with its child."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def end_child(self) -> None:
        """Have the child end itself; from any thread."""
        fence.extend(self._work_dir / LEASE_FILE, 0.0)

    async def _carry_out(self) -> None:
        try:
            await self._score_and_store()
        except Exception as error:
            # Another machine may do it; the evaluator shows people why this one does not.
            log.exception("order not carried out")
            self.problem = f"{type(error).__name__}: {error}"[:MAX_TEXT]

    async def _score_and_store(self) -> None:
        order = self.work.order
        limits = {name: getattr(order, name) for name in Limits.model_fields}
        own = Limits(**limits | {"device_name": device_name(order.device)})
        self.problem = why_unfit(order, own)[:MAX_TEXT]
        if self.problem:
            log.error("order not carried out", problem=self.problem)
            return
        outcome = await self._outcome()
        if outcome.crash and time.monotonic() > self._until:
            self.problem = "its lease was over before it ended"
            return
        raw = outcome.model_dump_json().encode()
        if len(raw) > MAX_OUTCOME_BYTES:
            crash = f"scores have {len(raw)} bytes, expected at most {MAX_OUTCOME_BYTES}"
            raw = Outcome(order_sha256=self.order_sha256, crash=crash).model_dump_json().encode()
        key = layout.evaluation_outcome(self.work.eval_id, self._lease_id)
        digest = await _patiently(lambda: self._objects.put_bytes(key, raw))
        self.outcome = StoredOutcome(sha256=digest, size_bytes=len(raw))
        log.info("run has ended", size_bytes=len(raw), crash=outcome.crash)

    async def _outcome(self) -> Outcome:
        work, environment = self.work, {fence.VARIABLE: str(self._work_dir / LEASE_FILE)}
        child = ScoringChild(
            threads=work.threads,
            silence=timedelta(seconds=work.silence_seconds),
            limit=timedelta(seconds=work.limit_seconds),
        )
        try:
            placed = await _patiently(lambda: self._cache.place(work.order, work.files))
            log.info("files fetched", base=placed.base_path, candidate=placed.candidate.path)
            scores = await child.score(placed, self._work_dir, self._take, environment)
        except (ScoringCrashed, CorruptObject, Rejected, KeyError) as error:
            crash = f"{type(error).__name__}: {error}"
            return Outcome(order_sha256=self.order_sha256, crash=crash, log=self._log())
        return Outcome(order_sha256=self.order_sha256, scores=scores, log=self._log())

    def _take(self, report: Report) -> None:
        about = (report.part, str(report.side)) if isinstance(report, PartProgressed) else ()
        self._progress[report.event, *about] = report

    def _log(self) -> str:
        return log_of(self._work_dir).decode("utf-8", "replace")


async def _patiently(call: Callable[[], Awaitable[Result]]) -> Result:
    """Return the call's result, as soon as S3, and who signs requests to it, answer."""
    return await retry_until_available(
        call, is_away=lambda error: isinstance(error, StorageUnavailable), retry_policy=FOR_EVER
    )
