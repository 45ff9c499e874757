"""A service's rows in memory, with transactions that can be undone and that take turns within.

Where a service has two processes, its transactions overlap as in READ COMMITTED: each statement sees what is committed
and what its own transaction wrote; what is written or locked stays so until the end; who waits for a lock repeats its
statement. A statement is one function of a store.
"""

from collections.abc import Awaitable, Callable, ItemsView, ValuesView
from typing import Any

import asyncpg

from shared.errors import StaleWrite
from shared.postgres.database import CONTENDED
from tests.simulation.clock import pause

MISSING: Any = object()
GAVE_WAY = (*CONTENDED, StaleWrite)
"""Another transaction was at the same rows."""
LOOK_AGAIN_SECONDS = 0.005
"""At a lock that another transaction holds."""

Name = tuple[str, Any]
Write = tuple[dict[Any, Any], Any, Any]
Turn = Callable[[], float | None]
"""For how long others have their turn between two statements; None: they have none."""


class Locked(Exception):
    def __init__(self, by: "Transaction") -> None:
        self.by = by


class Transaction:
    __slots__ = ("locks", "undo", "waits_for")

    def __init__(self) -> None:
        self.undo: list[Write] = []
        self.locks: set[Name] = set()
        self.waits_for: Transaction | None = None


class Tables:
    """Values are immutable, so that a row that was read never changes under its reader."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[Any, Any]] = {}
        self._running = Transaction()
        self._holders: dict[Name, dict[Transaction, bool]] = {}
        """By lock: who holds it, and whether it is shared."""
        self.turn: Turn | None = None
        """None: one transaction runs at a time, from its beginning to its end."""
        self.waits = 0
        """How often a statement met a lock."""

    def get(self, table: str, key: Any) -> Any:
        rows = self._tables.get(table)
        return None if rows is None else rows.get(key)

    def put(self, table: str, key: Any, row: Any) -> None:
        if self.turn is not None:
            self._lock(table, key)
        rows = self._tables.setdefault(table, {})
        self._running.undo.append((rows, key, rows.get(key, MISSING)))
        rows[key] = row

    def delete(self, table: str, key: Any) -> None:
        rows = self._tables.setdefault(table, {})
        if key in rows:
            self.lock_row(table, key)
            self._running.undo.append((rows, key, rows.pop(key)))

    def rows(self, table: str) -> ValuesView[Any]:
        return self._tables.setdefault(table, {}).values()

    def items(self, table: str) -> ItemsView[Any, Any]:
        return self._tables.setdefault(table, {}).items()

    def written(self, table: str, key: Any) -> Any:
        """What stood there before the running transaction wrote it first; MISSING where it did not."""
        rows = self._tables.get(table)
        return next((row for each, name, row in self._running.undo if each is rows and name == key), MISSING)

    # Locks, which end with their transaction.

    def lock_row(self, table: str, key: Any, *, is_shared: bool = False) -> None:
        """Where there is none, nothing is locked."""
        if self.turn is not None and key in self._tables.get(table, ()):
            self._lock(table, key, is_shared)

    def lock_name(self, name: str) -> None:
        if self.turn is not None:
            self._lock("", name)

    def is_locked(self, table: str, key: Any) -> bool:
        """By another transaction; for SKIP LOCKED."""
        return self._other_at((table, key), is_shared=False) is not None

    def _lock(self, table: str, key: Any, is_shared: bool = False) -> None:
        name = (table, key)
        if (other := self._other_at(name, is_shared)) is not None:
            raise Locked(other)
        holders = self._holders.setdefault(name, {})
        holders[self._running] = is_shared and holders.get(self._running, True)
        self._running.locks.add(name)

    def _other_at(self, name: Name, is_shared: bool) -> Transaction | None:
        holders = self._holders.get(name, {})
        others = (
            each
            for each, shared in holders.items()
            if each is not self._running and not (is_shared and shared)
        )
        return next(others, None)

    # Transactions.

    def begin(self) -> Transaction:
        self._running = Transaction()
        return self._running

    def commit(self) -> None:
        self._end(self._running)

    def roll_back(self, transaction: Transaction) -> None:
        """Also of one that is not running: what it wrote is taken back already."""
        if transaction is self._running:
            self._undo_to(0)
        self._end(transaction)

    async def ask(self, statement: Callable[[], Awaitable[Any]]) -> Any:
        """Its answer, once it has all locks that it needs."""
        if self.turn is None:
            return await statement()
        if (seconds := self.turn()) is not None:
            await self._give_way(seconds)
        running = self._running
        while True:
            mark = len(running.undo)
            try:
                answer = await statement()
            except Locked as locked:
                self._undo_to(mark)
                self.waits += running.waits_for is not locked.by
                running.waits_for = locked.by
                if _is_circular(running):
                    raise asyncpg.DeadlockDetectedError(f"{sorted(map(str, running.locks))}") from None
                await self._give_way(LOOK_AGAIN_SECONDS)
            else:
                running.waits_for = None
                return answer

    async def hold(self, name: str) -> None:
        """A row of the kernel: a story's position, a timer."""

        async def lock() -> None:
            self.lock_name(name)

        await self.ask(lock)

    async def _give_way(self, seconds: float) -> None:
        """Nobody sees what is not committed."""
        running = self._running
        writes = [(rows, key, rows.get(key, MISSING)) for rows, key, _ in running.undo]
        _restore(reversed(running.undo))
        self._running = Transaction()
        await pause(seconds)
        self._running = running
        _restore(writes)

    def _undo_to(self, mark: int) -> None:
        undo = self._running.undo
        _restore(reversed(undo[mark:]))
        del undo[mark:]

    def _end(self, transaction: Transaction) -> None:
        transaction.undo.clear()
        for name in transaction.locks:
            holders = self._holders[name]
            del holders[transaction]
            if not holders:
                del self._holders[name]
        transaction.locks.clear()
        transaction.waits_for = None


def _restore(writes: Any) -> None:
    for rows, key, row in writes:
        if row is MISSING:
            rows.pop(key, None)
        else:
            rows[key] = row


def _is_circular(first: Transaction) -> bool:
    waiting = first.waits_for
    while waiting is not None and waiting is not first:
        waiting = waiting.waits_for
    return waiting is first
