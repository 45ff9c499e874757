"""A service's rows in memory, with transactions that can be undone."""

from collections.abc import ItemsView, ValuesView
from typing import Any

MISSING: Any = object()


class Tables:
    """Values are immutable, so that a row that was read never changes under its reader."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[Any, Any]] = {}
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []

    def get(self, table: str, key: Any) -> Any:
        rows = self._tables.get(table)
        return None if rows is None else rows.get(key)

    def put(self, table: str, key: Any, row: Any) -> None:
        rows = self._tables.setdefault(table, {})
        self._undo.append((rows, key, rows.get(key, MISSING)))
        rows[key] = row

    def delete(self, table: str, key: Any) -> None:
        rows = self._tables.setdefault(table, {})
        if key in rows:
            self._undo.append((rows, key, rows.pop(key)))

    def rows(self, table: str) -> ValuesView[Any]:
        return self._tables.setdefault(table, {}).values()

    def items(self, table: str) -> ItemsView[Any, Any]:
        return self._tables.setdefault(table, {}).items()

    def commit(self) -> None:
        self._undo.clear()

    def roll_back(self) -> None:
        for rows, key, before in reversed(self._undo):
            if before is MISSING:
                rows.pop(key, None)
            else:
                rows[key] = before
        self._undo.clear()
