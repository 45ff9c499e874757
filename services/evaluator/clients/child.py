"""The scoring child process: followed by its reports, ended when it hangs."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

from services.evaluator.scoring.order import SCORES_FILE, Scores, WorkOrder
from services.evaluator.scoring.reports import REPORT, PartProgressed, Report
from shared.errors import RetuneError
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.processes.orders import write_order
from shared.processes.tail import last_lines
from shared.processes.workers import ERRORS, carry_out

log = get_logger(__name__)

OnReport = Callable[[Report], None]

SCORING = "services.evaluator.scoring"
MAX_LOG_BYTES = 1024 * 1024


class ScoringCrashed(RetuneError):
    """The child ended without scores; another try may end better."""

    def __init__(self, message: str, *, log: bytes = b"") -> None:
        super().__init__(message)
        self.log = log
        """What the child wrote to its standard error; the end of it where it is long."""


class ScoringChild:
    def __init__(self, *, threads: int | None, silence: timedelta, limit: timedelta) -> None:
        self._threads = threads
        self._silence = silence
        self._limit = limit

    async def score(
        self,
        order: WorkOrder,
        work_dir: Path,
        on_report: OnReport = lambda report: None,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> Scores:
        """Run the order to its end, handing over each of the child's reports. Raises ScoringCrashed.

        environment: the variables that leave the child its own devices alone.
        """
        work_dir.mkdir(parents=True, exist_ok=True)
        scores = work_dir / SCORES_FILE
        scores.unlink(missing_ok=True)
        threads = {"OMP_NUM_THREADS": str(self._threads)} if self._threads else {}

        def take(report: Report) -> None:
            failpoint("eval.item.done")
            _log(report)
            on_report(report)

        try:
            code = await carry_out(
                SCORING,
                write_order(work_dir, order),
                work_dir=work_dir,
                inputs=order.inputs,
                messages=REPORT,
                on_message=take,
                environment={**environment, **threads},
                limit=self._limit,
                silence=self._silence,
            )
        except TimeoutError as error:
            words = _last_words(work_dir)
            raise ScoringCrashed(
                f"scoring was silent too long or over its limit of {self._limit}: {words}"
            ) from error
        if code != 0 or not scores.exists():
            raise ScoringCrashed(f"scoring ended with exit code {code}: {_last_words(work_dir)}")
        return Scores.model_validate_json(scores.read_bytes())


def log_of(work_dir: Path) -> bytes:
    """Return what the newest child of an order wrote to its standard error; the end of it where it is long."""
    try:
        return (work_dir / ERRORS).read_bytes()[-MAX_LOG_BYTES:]
    except FileNotFoundError:
        return b""


def _log(report: Report) -> None:
    """Log a report; of the progress within a part only its end is logged."""
    if not isinstance(report, PartProgressed) or report.done == report.total:
        log.info("scoring reported", report=report.event, **report.model_dump(exclude={"event"}))


def _last_words(work_dir: Path) -> str:
    return " | ".join(last_lines(work_dir / ERRORS, 3)) or "it said nothing"
