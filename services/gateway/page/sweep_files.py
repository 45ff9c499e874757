"""A sweep as the TOML file that people keep: written, read, and the line that an error is about. Pure."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue, ValidationError

from schemas.numbers import shortest
from services.gateway.errors import is_field
from services.gateway.model import JsonObject
from shared.errors import Refused

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
AT_LINE = re.compile(r"\(at line (\d+), column \d+\)$")
COMMENTS: Mapping[str, str] = {
    "algorithm": 'or "random", or "grid" for every combination',
    "num_trials": "at most",
    "concurrency": "trials at once",
    "max_cost": "US dollars for all trials together",
    "job": "the body of POST /v1/fine_tuning/jobs",
    "job.validation_file": "trials are compared by the loss on it",
    "parameters.learning_rate.log": "its order of magnitude is searched evenly",
    "pruning.rule": 'or "successive_halving", "hyperband"',
}
"""What is explained beside a line, by its path."""
RECIPE: JsonObject = {
    "method": "lora",
    "eval_every_steps": 50,
    "load_best_model_at_end": True,
    "checkpoint": {"every_steps": 50, "every_seconds": 3600},
}
SEARCH: JsonObject = {
    "parameters": {
        "learning_rate": {"low": 1e-5, "high": 1e-3, "log": True},
        "lora.rank": {"choices": [8, 16, 32]},
    },
    "pruning": {"rule": "median"},
}
DEEPEST_TABLE = 3
FILES = (("job", "training_file"), ("job", "validation_file"), ("job", "retune", "holdout_file"))
"""Where a sweep names files."""


@dataclass(frozen=True)
class Problem:
    line: int | None
    message: str


def example(model: str, training_file: str, validation_file: str) -> JsonObject:
    """Return a sweep over rate and rank, as the guide has it."""
    job: JsonObject = {
        "model": model,
        "training_file": training_file,
        "validation_file": validation_file,
        "retune": {"recipe": RECIPE},
    }
    return sweep_over(job)


def sweep_over(job: JsonObject) -> JsonObject:
    """Return a sweep of the job over rate and rank."""
    head: JsonObject = {
        "name": "rates",
        "algorithm": "tpe",
        "num_trials": 20,
        "concurrency": 2,
        "max_cost": "25.00",
    }
    return head | {"job": job} | SEARCH


def written(body: JsonObject) -> str:
    """Return TOML of JSON that has no null: values first, then a table for each object in it."""
    return "\n".join(_table(body, ())).strip() + "\n"


def _table(table: JsonObject, path: tuple[str, ...]) -> Iterator[str]:
    values = {name: value for name, value in table.items() if not _has_table(value, path)}
    if path and (values or not table):
        yield f"\n[{'.'.join(map(_key, path))}]{_comment(path)}"
    for name, value in values.items():
        yield f"{_key(name)} = {_value(value)}{_comment((*path, name))}"
    for name, value in table.items():
        if isinstance(value, dict) and _has_table(value, path):
            yield from _table(value, (*path, name))


def _has_table(value: JsonValue, path: tuple[str, ...]) -> bool:
    """Whether it gets a table of its own; what is nested deeper is written in one line."""
    return isinstance(value, dict) and len(path) < DEEPEST_TABLE


def _value(value: JsonValue) -> str:
    match value:
        case dict():
            return "{ " + ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items()) + " }"
        case list():
            return "[" + ", ".join(map(_value, value)) + "]"
        case str():
            # JSON leaves DEL as it is, which TOML does not take.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case float():
            return shortest(value)
        case _:
            return json.dumps(value)


def _key(name: str) -> str:
    return name if BARE_KEY.fullmatch(name) else _value(name)


def _comment(path: tuple[str, ...]) -> str:
    comment = COMMENTS.get(".".join(path))
    return f"  # {comment}" if comment else ""


def read(text: str) -> JsonObject:
    """Raises Refused where it is no TOML."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Refused("invalid_toml", f"not TOML: {error}") from error


def problem_of(text: str, param: str | None, message: str) -> Problem:
    """Return what was refused, at the line of the parameter, or of the character that is no TOML."""
    at = AT_LINE.search(message)
    return Problem(int(at[1]) if at else line_of(text, param or ""), message)


def problems_of(text: str, error: ValidationError) -> list[Problem]:
    """Return one for each field; of a field that may be several things, with what each of them expects."""
    messages: dict[Problem, list[str]] = {}
    for each in error.errors():
        path = _param_of(each["loc"])
        value = "" if isinstance(each["input"], dict) else f"found {str(each['input'])[:80]!r}: "
        place = Problem(line_of(text, path), f"{path or 'sweep'}: {value}")
        messages.setdefault(place, []).append(each["msg"].removeprefix("Value error, "))
    return [Problem(place.line, place.message + ", or: ".join(words)) for place, words in messages.items()]


def _param_of(location: tuple[int | str, ...]) -> str:
    """Return the path of a field without the kinds that its value may be of."""
    if location[:1] == ("parameters",):
        location = (*location[:2], *location[3:])
        return ".".join(str(part) for part in location[:2] + tuple(filter(is_field, location[2:])))
    return ".".join(str(part) for part in location if is_field(part))


def line_of(text: str, param: str) -> int | None:
    """Return the line of the parameter, or of the nearest table that it belongs in; None where there is neither."""
    lines = _lines(text)
    path: tuple[str, ...] = ()
    while param:
        names = {each[len(path)] for each in lines if len(each) > len(path) and each[: len(path)] == path}
        fitting = [each for each in names if param == each or param.startswith(f"{each}.")]
        if fitting:
            path = (*path, max(fitting, key=len))
            param = param[len(path[-1]) + 1 :]
        else:
            param = param.partition(".")[2]
    return next((line for each, line in lines.items() if path and each[: len(path)] == path), None)


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line of each table and key by its path, in the order of the text."""
    table: tuple[str, ...] = ()
    lines: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip().startswith("["):
            table = _path_in(line) or table
            lines.setdefault(table, number)
        elif key := _path_in(line.partition("=")[0] + "= 0"):
            lines.setdefault((*table, *key), number)
    return lines


def _path_in(line: str) -> tuple[str, ...]:
    """Return the keys of a table's head or of a value, outermost first; none where the line is neither."""
    try:
        inner: object = tomllib.loads(line.strip())
    except (tomllib.TOMLDecodeError, RecursionError):
        return ()
    path = []
    while isinstance(inner, dict) and inner:
        name, inner = next(iter(inner.items()))
        path.append(name)
    return tuple(path)


def files_that_are_paths(body: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield the parameters that name a file by its path, which the command line alone uploads, with the path."""
    for path in FILES:
        value: JsonValue = body
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, str) and value and not value.startswith("file-"):
            yield ".".join(path), value
