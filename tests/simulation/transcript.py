"""What the services of a simulated world asked of their stores in memory, and what these answered, by transaction."""

from collections import defaultdict
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any

import pytest

from tests.simulation import scenario, wiring
from tests.simulation.tables import Tables
from tests.simulation.tables import Transaction as Running


@dataclass(frozen=True)
class Call:
    """One function of a store. Values are immutable, so that what was recorded stays as it was."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: Any = None
    error: type[Exception] | None = None


@dataclass
class Transaction:
    calls: list[Call] = field(default_factory=list)
    is_committed: bool = False


class Transcript:
    """Of one world. Transactions run one at a time, each to its end."""

    def __init__(self) -> None:
        self.by_service: defaultdict[str, list[Transaction]] = defaultdict(list)
        self._running: dict[Tables, Transaction] = {}

    def begin(self, tables: Tables) -> None:
        self._running[tables] = Transaction()

    def add(self, tables: Tables, service: str, call: Call) -> None:
        running = self._running[tables]
        if not running.calls:
            self.by_service[service].append(running)
        running.calls.append(call)

    def commit(self, tables: Tables) -> None:
        self._running.setdefault(tables, Transaction()).is_committed = True


def record(seed: int) -> Transcript:
    """Run one world. Raises Violation."""
    transcript = Transcript()
    with _recorded(transcript), wiring.in_memory():
        scenario.run(seed)
    return transcript


@contextmanager
def _recorded(transcript: Transcript) -> Iterator[None]:
    begin, commit = Tables.begin, Tables.commit

    def noted_begin(tables: Tables) -> Running:
        transcript.begin(tables)
        return begin(tables)

    def noted_commit(tables: Tables) -> None:
        transcript.commit(tables)
        commit(tables)

    def statement(function: Any) -> Any:
        if not iscoroutinefunction(function):
            return function
        service = function.__module__.rpartition(".")[2]

        async def ask(conn: Tables, *args: Any, **kwargs: Any) -> Any:
            def asked() -> Awaitable[Any]:
                return function(conn, *args, **kwargs)  # type: ignore[no-any-return]

            try:
                answer = await conn.ask(asked)
            except Exception as error:
                call = Call(function.__name__, args, kwargs, error=type(error))
                transcript.add(conn, service, call)
                raise
            transcript.add(conn, service, Call(function.__name__, args, kwargs, answer))
            return answer

        return ask

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tables, "begin", noted_begin)
        patch.setattr(Tables, "commit", noted_commit)
        patch.setattr(wiring, "_statement", statement)
        yield
