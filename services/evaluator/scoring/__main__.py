"""`python -m services.evaluator.scoring <order.json>`: scores beside the order, progress lines on stdout."""

import json
import os
import stat
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from services.evaluator.scoring.order import SCORES_FILE, WorkOrder
from shared.files import write_whole

ORPHANED = 3
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
    reports = _take_stdout()
    _end_with_parent()
    order = WorkOrder.model_validate_json(order_path.read_bytes())

    # The libraries read the environment when they are imported.
    from services.evaluator.scoring.run import run

    def send(report: Mapping[str, Any]) -> None:
        reports.write(json.dumps(report) + "\n")
        reports.flush()

    scores = run(order, work_dir, send)
    write_whole(work_dir / SCORES_FILE, scores.model_dump_json())
    send({"event": "done", "failure": scores.failure.code if scores.failure else None})


def refuse_network() -> None:
    """Whatever a library or a model's file would reach for, this process connects to nothing."""

    def refuse(event: str, _: object) -> None:
        if event in CONNECTING:
            raise PermissionError(f"scoring opens no connection: {event}")

    sys.addaudithook(refuse)


def _take_stdout() -> TextIO:
    """Our reports alone go to stdout; whatever a library prints goes to stderr."""
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return reports


def _end_with_parent() -> None:
    """A parent that holds our standard input open is gone when it closes."""
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(ORPHANED)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
