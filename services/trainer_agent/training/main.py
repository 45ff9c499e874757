"""The training child: `torchrun … -m services.trainer_agent.training.main <work directory>`.

Exit codes are a courtesy to people; what happened is in the last report.
"""

import logging
import os
import sys
from pathlib import Path

from services.trainer_agent.protocol import (
    EXIT_COMPLETED,
    EXIT_FAILED,
    EXIT_STOPPED,
    Outcome,
)
from services.trainer_agent.training.stop import StopRequest
from shared.processes.loading import quick_imports

EXIT_CODES = {
    Outcome.COMPLETED: EXIT_COMPLETED,
    Outcome.STOPPED: EXIT_STOPPED,
    Outcome.FAILED: EXIT_FAILED,
}


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    work_dir = Path(sys.argv[1])
    stop = StopRequest(work_dir)
    # Before the imports that take seconds: a stop during them is heard.
    stop.listen()
    with quick_imports():
        from services.trainer_agent.training.child import run_child
        from services.trainer_agent.training.distributed import own_world

    outcome = run_child(work_dir, own_world(os.environ), stop)
    if outcome is Outcome.FAILED:
        sys.stderr.flush()
        # Threads and peers may hang for ever after a failure: nothing is left to clean up.
        os._exit(EXIT_FAILED)
    sys.exit(EXIT_CODES[outcome])


if __name__ == "__main__":
    main()
