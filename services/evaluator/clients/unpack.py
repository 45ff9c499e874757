"""Parquet as JSON lines, written by a process of its own: native code reads what a tenant wrote.

`python -m services.evaluator.clients.unpack <order.json>` is that process.
"""

import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from pydantic import TypeAdapter

from schemas.base import Value
from shared.log import get_logger
from shared.parquet import BadParquet, open_rows
from shared.processes.limits import confine
from shared.processes.orders import Messages, read_order, write_order
from shared.processes.tail import last_lines
from shared.processes.workers import ERRORS, carry_out
from shared.row_files import ENVIRONMENT, MAX_GATE_BYTES

log = get_logger(__name__)

LIMIT = timedelta(minutes=10)
MEMORY_BYTES = 2 << 30
"""Address space of the process."""
TAIL_LINES = 5
ROWS = "rows.jsonl"


class Order(Value):
    path: Path
    into: Path


class Unpacked(Value):
    problem: str = ""


async def unpack(path: Path, into: Path) -> str:
    """Write the rows of a Parquet file at `into`, which then has all of them. Return why not, else nothing."""
    answers: list[Unpacked] = []
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        work_dir = Path(name)
        order = Order(path=path.absolute(), into=work_dir.absolute() / ROWS)
        try:
            code = await carry_out(
                "services.evaluator.clients.unpack",
                write_order(work_dir, order),
                work_dir=work_dir,
                inputs=[order.path],
                messages=TypeAdapter(Unpacked),
                on_message=answers.append,
                environment=ENVIRONMENT,
                limit=LIMIT,
            )
        except TimeoutError:
            code = -1
        if not answers:
            log.warning(
                "Parquet could not be read", code=code, errors=last_lines(work_dir / ERRORS, TAIL_LINES)
            )
            within = f"{LIMIT.total_seconds():.0f} s and {MEMORY_BYTES} bytes of memory"
            return f"could not be read as Parquet within {within}"
        if not answers[-1].problem:
            order.into.replace(into)
    return answers[-1].problem


def write_rows(order: Order) -> Unpacked:
    """Write the rows, as many as the gate takes."""
    try:
        with open_rows(order.path, at_most_bytes=MAX_GATE_BYTES) as rows, order.into.open("wb") as lines:
            lines.writelines(rows)
    except BadParquet as problem:
        return Unpacked(problem=str(problem))
    return Unpacked()


def main(path: Path) -> None:
    messages, order = Messages(), read_order(path, Order)
    confine(memory_bytes=MEMORY_BYTES, cpu_seconds=int(LIMIT.total_seconds()), file_bytes=MAX_GATE_BYTES)
    messages.send(write_rows(order))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
