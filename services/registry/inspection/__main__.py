"""`python -m services.registry.inspection <directory>`: one JSON object on standard output, an Inspection."""

import contextlib
import logging
import sys
from pathlib import Path


def main(directory: Path) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    # Libraries print what they like; the answer stands alone.
    with contextlib.redirect_stdout(sys.stderr):
        from services.registry.inspection.networks import inspect

        inspection = inspect(directory)
    sys.stdout.write(inspection.model_dump_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
