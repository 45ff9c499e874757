"""`python -m services.registry.export <order.json>`: files beside the order, reports as lines on standard output."""

import logging
import os
import resource
import sys
from pathlib import Path

from services.registry.export.order import ExportOrder
from shared.processes.loading import quick_imports
from shared.processes.orders import Messages, read_order


def main(order_path: Path) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    logging.getLogger("transformers").setLevel(logging.ERROR)
    messages, order = Messages(), read_order(order_path, ExportOrder)
    # Private memory alone: pages of files that are mapped can be taken back at any time.
    resource.setrlimit(resource.RLIMIT_DATA, (order.memory_bytes, order.memory_bytes))
    with quick_imports():
        from services.registry.export.run import run

    run(order, order_path.parent, messages.send)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
