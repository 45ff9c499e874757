"""Work on the lines of a file in batches, in this process or in several, with the results in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

from services.ingest.pipeline.lines import Line

Result = TypeVar("Result")

BATCH_ROWS = 256
BATCH_BYTES = 4 << 20


def in_order(
    work: Callable[[list[Line]], list[Result]], lines: Iterable[Line], *, workers: int
) -> Iterator[Result]:
    """Results in the order of the lines, from this process or from `workers` forked ones."""
    if workers <= 1:
        for batch in batches(lines):
            yield from work(batch)
        return
    # Forked, so that tokenizer and sources are shared and not sent.
    with ProcessPoolExecutor(workers, get_context("fork"), _install, (work,)) as pool:
        pending: deque[Future[list[Result]]] = deque()
        for batch in batches(lines):
            pending.append(pool.submit(_work_installed, batch))
            if len(pending) > 2 * workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def batches(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Lines in lists bounded by number and by bytes."""
    batch: list[Line] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line.content)
        if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


_installed: list[Callable[[list[Line]], list[Any]]] = []


def _install(work: Callable[[list[Line]], list[Any]]) -> None:
    _installed.append(work)


def _work_installed(batch: list[Line]) -> list[Any]:
    return _installed[0](batch)
