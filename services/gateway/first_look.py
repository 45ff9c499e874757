"""A first look at an upload: JSON lines here; Parquet, which a library of native code reads, in a process of its own.

`python -m services.gateway.first_look <order.json>` is that process.
"""

import asyncio
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from pydantic import TypeAdapter

from schemas.base import Count, Value
from schemas.specification import DatasetFormat
from services.gateway.errors import ApiError
from services.gateway.uploads import count_lines, detect_format, invalid_file
from shared.log import get_logger
from shared.parquet import BadParquet, num_rows_of
from shared.processes.limits import confine
from shared.processes.orders import Messages, read_order, write_order
from shared.processes.tail import last_lines
from shared.processes.workers import ERRORS, carry_out
from shared.row_files import ENVIRONMENT, is_parquet

log = get_logger(__name__)

LIMIT = timedelta(seconds=30)
MEMORY_BYTES = 768 << 20
"""Address space of the process; the gateway's own container has little more memory."""
TAIL_LINES = 5


class Order(Value):
    path: Path
    purpose: str


class Look(Value):
    """What the first rows of a file say of it, or why it is refused."""

    format: DatasetFormat | None = None
    num_rows: Count = 0
    problem: str = ""


class FirstLook:
    def __init__(self, scratch_dir: Path) -> None:
        self._scratch_dir = scratch_dir
        self._parquet = asyncio.Semaphore(1)

    async def __call__(self, path: Path, purpose: str) -> Look:
        """Look at the first rows of a file. Raises ApiError where it cannot be one of rows."""
        if not await asyncio.to_thread(is_parquet, path):
            file_format = await asyncio.to_thread(detect_format, path, purpose=purpose)
            return Look(format=file_format, num_rows=await asyncio.to_thread(count_lines, path))
        async with self._parquet:
            look = await self._apart(Order(path=path.absolute(), purpose=purpose))
        if look.problem:
            raise invalid_file(look.problem)
        return look

    async def _apart(self, order: Order) -> Look:
        looks: list[Look] = []
        with tempfile.TemporaryDirectory(dir=self._scratch_dir) as name:
            work_dir = Path(name)
            try:
                code = await carry_out(
                    "services.gateway.first_look",
                    write_order(work_dir, order),
                    work_dir=work_dir,
                    inputs=[order.path],
                    messages=TypeAdapter(Look),
                    on_message=looks.append,
                    environment=ENVIRONMENT,
                    limit=LIMIT,
                )
            except TimeoutError:
                code = -1
            if not looks:
                tail = "\n".join(last_lines(work_dir / ERRORS, TAIL_LINES))
                log.warning("Parquet could not be looked at", code=code, errors=tail)
                within = f"{LIMIT.total_seconds():.0f} s and {MEMORY_BYTES} bytes of memory"
                return Look(problem=f"its first rows could not be read as Parquet within {within}")
        return looks[-1]


def look_at(order: Order) -> Look:
    """Look at the first rows of a Parquet file."""
    try:
        file_format = detect_format(order.path, purpose=order.purpose)
        return Look(format=file_format, num_rows=num_rows_of(order.path))
    except ApiError as error:
        return Look(problem=str(error).removeprefix("file: "))
    except BadParquet as problem:
        return Look(problem=f"the file {problem}")


def main(path: Path) -> None:
    messages, order = Messages(), read_order(path, Order)
    confine(memory_bytes=MEMORY_BYTES, cpu_seconds=int(LIMIT.total_seconds()), file_bytes=1 << 20)
    messages.send(look_at(order))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
