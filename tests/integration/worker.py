"""What tests run as a worker: `python -m tests.integration.worker <order.json>` does what the order says."""

import os
import sys
import time
from pathlib import Path
from typing import Literal

from schemas.base import Value
from shared.processes.orders import Messages, read_order


class Deed(Value):
    does: Literal["report", "crash", "hang", "babble"]


class Word(Value):
    text: str


def main(path: Path) -> None:
    messages = Messages()
    messages.send(Word(text=str(os.getpid())))
    sys.stdout.write("what a library prints\n")
    match read_order(path, Deed).does:
        case "report":
            for name, value in os.environ.items():
                messages.send(Word(text=f"{name}={value}"))
        case "crash":
            sys.exit("the last words")
        case "hang":
            time.sleep(600)
        case "babble":
            messages._stream.write("no message\n")
            messages._stream.flush()
            time.sleep(600)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
