"""What a person types to find jobs: `status:failed base:qwen cost>5 ended<2d words`. Pure."""

import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from schemas.lifecycle import TERMINAL, JobState
from services.gateway.job_readmodels import JobFilter
from shared.errors import Refused

GROUPS: Mapping[str, tuple[JobState, ...]] = {
    "active": tuple(state for state in JobState if state not in TERMINAL and state is not JobState.PAUSED),
    "paused": (JobState.PAUSED,),
    "succeeded": (JobState.SUCCEEDED,),
    "failed": (JobState.FAILED,),
    "cancelled": (JobState.CANCELLED,),
}
"""States that a list counts together."""
TERM = re.compile(r"(?P<name>[\w.-]+)(?P<operator>[:<>])(?P<value>.+)")
ID_PREFIX = re.compile(r"(ftjob-|ds-|mv-|sweep-|whe_)[\w.-]+")
"""The beginning of an id that has a page, with something of the id's own."""
UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}
AGE = re.compile(r"(\d{1,4})(s|min|h|d)")
AMOUNT = re.compile(r"\d{1,9}(\.\d{1,6})?")
MAX_TERMS = 16


def parse(text: str) -> JobFilter:
    """Raises Refused, which names the term and what is expected."""
    fields: dict[str, Any] = {}
    words: list[str] = []
    for term in text.split()[:MAX_TERMS]:
        match = TERM.fullmatch(term)
        if match is None:
            words.append(term)
        else:
            _add(fields, match["name"], match["operator"], match["value"])
    return JobFilter(words=tuple(words), **fields)


def is_id_prefix(text: str) -> bool:
    return ID_PREFIX.fullmatch(text) is not None


def _add(fields: dict[str, Any], name: str, operator: str, value: str) -> None:
    match name, operator:
        case "status", ":":
            fields["states"] = _states(value)
        case "base" | "method", ":":
            fields[name] = value
        case "cost", ">":
            fields["cost_above"] = _amount(value)
        case "created" | "ended", "<":
            fields[f"{name}_within"] = _age(name, value)
        case _, ":":
            fields["metadata"] = (fields.get("metadata") or {}) | {name: value}
        case _:
            expected = "cost>5, created<2d or ended<2d"
            raise _refused(f"{name}{operator}{value}", expected)


def _states(value: str) -> tuple[JobState, ...]:
    if value in GROUPS:
        return GROUPS[value]
    if value in {*JobState}:
        return (JobState(value),)
    expected = ", ".join(dict.fromkeys([*GROUPS, *JobState]))
    raise _refused(f"status:{value}", f"one of {expected}")


def _amount(value: str) -> Decimal:
    if not AMOUNT.fullmatch(value):
        raise _refused(f"cost>{value}", "US dollars, such as cost>5")
    return Decimal(value)


def _age(name: str, value: str) -> timedelta:
    match = AGE.fullmatch(value)
    if match is None:
        raise _refused(f"{name}<{value}", f"a time such as {name}<2d, with s, min, h or d")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


def _refused(term: str, expected: str) -> Refused:
    return Refused("invalid_value", f"search: found {term[:80]!r}, expected {expected}", param="q")


def with_status(text: str, group: str) -> str:
    """Return the search with this status in place of any other; without one where `group` is empty."""
    terms = [term for term in text.split() if not term.startswith("status:")]
    return " ".join([f"status:{group}", *terms] if group else terms)


def has_status(text: str, group: str) -> bool:
    statuses = [term for term in text.split() if term.startswith("status:")]
    return statuses == ([f"status:{group}"] if group else [])
