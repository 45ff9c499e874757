"""`python -m services.evaluator.scoring <order.json>`: scores beside the order, progress lines on stdout."""

import os
import sys
from pathlib import Path

from services.evaluator.scoring.order import SCORES_FILE, WorkOrder
from services.evaluator.scoring.reports import Done
from shared.device_leases.fence import end_with_lease
from shared.files import write_whole
from shared.processes.loading import quick_imports
from shared.processes.orders import Messages, read_order

CONNECTING = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"})
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def main(order_path: Path) -> None:
    work_dir = order_path.parent
    os.environ.update(OFFLINE)
    os.environ["HF_HOME"] = str(work_dir / "cache")
    os.environ["HF_DATASETS_CACHE"] = str(work_dir / "cache" / "datasets")
    refuse_network()
    end_with_lease()
    messages, order = Messages(), read_order(order_path, WorkOrder)

    # The libraries read the environment when they are imported.
    with quick_imports():
        from services.evaluator.scoring.run import run

    scores = run(order, work_dir, messages.send)
    write_whole(work_dir / SCORES_FILE, scores.model_dump_json())
    messages.send(Done(failure=scores.failure.code if scores.failure else None))


def refuse_network() -> None:
    """Make this process connect to nothing, whatever a library or a model's file would reach for."""

    def refuse(event: str, _: object) -> None:
        if event in CONNECTING:
            raise PermissionError(f"scoring opens no connection: {event}")

    sys.addaudithook(refuse)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
