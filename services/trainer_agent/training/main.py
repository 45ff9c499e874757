"""The training child: `torchrun … -m services.trainer_agent.training.main <work directory>`.

Exit codes are a courtesy to people; what happened is told by the last report.
"""

import logging
import os
import sys
from pathlib import Path

from services.trainer_agent.protocol import (
    EXIT_COMPLETED,
    EXIT_FAILED,
    EXIT_STOPPED,
    Ended,
    Outcome,
    read_order,
)
from services.trainer_agent.training.distributed import World, joined_world
from services.trainer_agent.training.failures import classify, describe
from services.trainer_agent.training.loop import train
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.setup import prepare
from services.trainer_agent.training.stop import StopWish

EXIT_CODES = {
    Outcome.COMPLETED: EXIT_COMPLETED,
    Outcome.STOPPED: EXIT_STOPPED,
    Outcome.FAILED: EXIT_FAILED,
}
log = logging.getLogger(__name__)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    work_dir = Path(sys.argv[1])
    stop = StopWish(work_dir)
    stop.listen()
    with joined_world() as world:
        outcome = run_child(work_dir, world, stop)
        if outcome is Outcome.FAILED:
            sys.stderr.flush()
            # Threads and peers may hang for ever after a failure: nothing is left to clean up.
            os._exit(EXIT_FAILED)
    sys.exit(EXIT_CODES[outcome])


def run_child(work_dir: Path, world: World, stop: StopWish) -> Outcome:
    """Carry out the order in `work_dir`; its end, also by an error, is the last report."""
    reports = Reports(work_dir, world)
    try:
        run, resumed = prepare(read_order(work_dir), work_dir, world, reports)
        outcome = train(run, stop, resumed)
    except Exception as error:
        log.exception("training failed")
        failure = Ended(
            outcome=Outcome.FAILED,
            failure_class=classify(error),
            message=describe(error),
            last_step=reports.last_step,
        )
        reports.end(failure)
        return Outcome.FAILED
    reports.end(
        Ended(
            outcome=outcome,
            message=stop.reason if outcome is Outcome.STOPPED else "",
            last_step=reports.last_step,
        )
    )
    return outcome


if __name__ == "__main__":
    main()
