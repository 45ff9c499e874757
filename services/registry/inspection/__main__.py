"""`python -m services.registry.inspection <directory>`: one JSON object on standard output, an Inspection."""

import logging
import sys
from pathlib import Path

from shared.processes.loading import quick_imports
from shared.processes.orders import Messages


def main(directory: Path) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    messages = Messages()
    with quick_imports():
        from services.registry.inspection.networks import inspect

    messages.send(inspect(directory))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
