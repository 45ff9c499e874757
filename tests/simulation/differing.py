"""Where two answers differ, by the path to it."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

ROUNDING = timedelta(microseconds=1)


def differences(memory: Any, postgres: Any, path: str = "answer") -> Iterator[str]:
    """Yield each path at which a store in memory gave another value than one on Postgres."""
    if memory == postgres or _is_rounded(memory, postgres):
        return
    parts = _parts(memory), _parts(postgres)
    if type(memory) is not type(postgres) or not parts[0] or parts[0].keys() != parts[1].keys():
        yield f"{path}: {memory!r} in memory, {postgres!r} in Postgres"
        return
    for name, part in parts[0].items():
        yield from differences(part, parts[1][name], f"{path}.{name}")


def _is_rounded(memory: Any, postgres: Any) -> bool:
    both = isinstance(memory, timedelta) and isinstance(postgres, timedelta)
    return both and abs(memory - postgres) <= ROUNDING


def _parts(value: Any) -> dict[Any, Any]:
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    return dict(value) if isinstance(value, Mapping) else {}
