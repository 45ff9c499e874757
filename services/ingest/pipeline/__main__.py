"""`python -m services.ingest.pipeline <order.json>`: one dataset, under limits, in a process of its own."""

import errno
import sys
from pathlib import Path

from services.ingest.pipeline.limits import confine, die_with_parent
from services.ingest.pipeline.order import ChildMessage, LimitExceeded, WorkOrder


def main(path: str) -> int:
    die_with_parent()
    order = WorkOrder.model_validate_json(Path(path).read_bytes())
    limits = order.limits
    confine(memory_bytes=limits.memory_bytes, cpu_seconds=limits.cpu_seconds, file_bytes=limits.file_bytes)
    try:
        # Imported under the limits: these libraries read what a tenant wrote.
        from services.ingest.pipeline.run import validate

        send(validate(order, send))
    except MemoryError:
        send(
            LimitExceeded(
                resource="memory", message=f"validation needs more than {limits.memory_bytes} bytes of memory"
            )
        )
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        send(
            LimitExceeded(
                resource="file", message=f"validation writes a file of more than {limits.file_bytes} bytes"
            )
        )
    return 0


def send(message: ChildMessage) -> None:
    print(message.model_dump_json(), flush=True)  # noqa: T201 - standard output is the channel to the service


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
