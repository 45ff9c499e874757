"""Strict reading of JSON, which refuses what Python's reader accepts: duplicate keys, NaN, nesting of any depth."""

import json
from collections import Counter
from typing import Any, NoReturn

from shared.nesting import MAX_NESTING, TooDeep, require_shallow

SHOWN_CHARACTERS = 80


class JsonProblem(ValueError):
    """The text is refused: `code` is invalid, depth or duplicate_key; `field` is the duplicate key, else empty."""

    def __init__(self, code: str, found: str, field: str = "") -> None:
        super().__init__(found)
        self.code = code
        self.field = field
        self.found = found


def read_json(text: str) -> Any:
    """Parse JSON. Raises JsonProblem. The cost grows only with the length of the text, whatever it holds."""
    try:
        require_shallow(text)
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_not_json)
    except TooDeep:
        raise JsonProblem("depth", f"more than {MAX_NESTING} levels") from None
    except json.JSONDecodeError as error:
        raise JsonProblem("invalid", f"{error.msg} at column {error.colno}") from None
    except JsonProblem:
        raise
    except ValueError:
        raise JsonProblem("invalid", "a number of more than 4,300 digits") from None


def shown(value: Any) -> str:
    """Return a value as a report shows it: objects and lists by type, long texts cut."""
    if isinstance(value, dict):
        return cut(f"object with {', '.join(sorted(map(str, list(value)[:10]))) or 'no field'}")
    if isinstance(value, list):
        return f"list of {len(value)}"
    if isinstance(value, str):
        return cut(repr(value[: SHOWN_CHARACTERS + 1]))
    return cut(json.dumps(value))


def cut(text: str) -> str:
    printable = text.encode(errors="backslashreplace").decode()
    return printable if len(printable) <= SHOWN_CHARACTERS else f"{printable[: SHOWN_CHARACTERS - 1]}…"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        key, times = Counter(key for key, _ in pairs).most_common(1)[0]
        raise JsonProblem("duplicate_key", f"{times} times in one object", cut(key))
    return value


def _not_json(constant: str) -> NoReturn:
    raise JsonProblem("invalid", f"{constant}, which is not JSON")
