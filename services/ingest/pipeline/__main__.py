"""`python -m services.ingest.pipeline <order.json>`: one dataset, under limits, in a process of its own."""

import errno
import os
import sys
from pathlib import Path

from services.ingest.pipeline.order import LimitExceeded, WorkOrder
from shared.processes.limits import confine
from shared.processes.orders import Messages, read_order


def main(path: Path) -> int:
    messages, order = Messages(), read_order(path, WorkOrder)
    limits = order.limits
    confine(memory_bytes=limits.memory_bytes, cpu_seconds=limits.cpu_seconds, file_bytes=limits.file_bytes)
    try:
        # Imported under the limits: these libraries read what a tenant wrote.
        from services.ingest.pipeline.run import validate

        messages.send(validate(order, messages.send))
    except MemoryError:
        os.abort()  # as native code does; to say more would need memory, which may still be missing
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        messages.send(
            LimitExceeded(
                resource="file", message=f"validation writes a file of more than {limits.file_bytes} bytes"
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
