"""What a person types to find rows of a list: `status:failed base:qwen cost>5 ended<2d words`. Pure."""

import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from schemas.lifecycle import TERMINAL, JobState
from services.gateway.filters import ListFilter
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
Statuses = Mapping[str, tuple[str, ...]]
"""States of rows by the word that `status:` takes."""
TERM = re.compile(r"(?!ft:|https?://)(?P<name>[\w.-]+)(?P<operator>[:<>])(?P<value>.+)")
"""Names of versions and URLs have colons and are words."""
ID_PREFIX = re.compile(r"(ftjob-|ds-|mv-|sweep-|whe_)[\w.-]+")
"""The beginning of an id that has a page, with something of the id's own."""
UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}
AGE = re.compile(r"(\d{1,4})(s|min|h|d)")
AMOUNT = re.compile(r"\d{1,9}(\.\d{1,6})?")
MAX_TERMS = 16


def parse(text: str) -> JobFilter:
    """Raises Refused, which names the term and what is expected."""
    words, terms = _split(text)
    fields: dict[str, Any] = {}
    for name, operator, value in terms:
        _add(fields, name, operator, value)
    return JobFilter(words=words, **fields)


def parse_status(text: str, statuses: Statuses) -> ListFilter:
    """Read the search of a list whose only term is `status:`. Raises Refused as `parse` does."""
    words, terms = _split(text)
    states: tuple[str, ...] = ()
    for name, operator, value in terms:
        if (name, operator) != ("status", ":") or value not in statuses:
            raise _refused(f"{name}{operator}{value}", f"words or status: with one of {', '.join(statuses)}")
        states += statuses[value]
    return ListFilter(words=words, states=states)


def _split(text: str) -> tuple[tuple[str, ...], list[tuple[str, str, str]]]:
    """Return words, and terms as name, operator and value."""
    asked = text.split()
    if len(asked) > MAX_TERMS:
        message = f"search: found {len(asked)} words and terms, expected at most {MAX_TERMS}"
        raise Refused("invalid_value", message, param="q")
    matches = [TERM.fullmatch(each) for each in asked]
    words = tuple(each for each, match in zip(asked, matches, strict=True) if match is None)
    return words, [(match["name"], match["operator"], match["value"]) for match in matches if match]


def is_id_prefix(text: str) -> bool:
    return ID_PREFIX.fullmatch(text) is not None


def _add(fields: dict[str, Any], name: str, operator: str, value: str) -> None:
    match name, operator:
        case "status", ":":
            fields["states"] = (*fields.get("states", ()), *_states(value))
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
