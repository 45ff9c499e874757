"""Times as people give them to options, and read them."""

import re
from datetime import UTC, datetime, timedelta

import typer

from shared.clock import utc_now

AGO = re.compile(r"(\d+)([smhd])")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_time(option: str, text: str) -> datetime:
    """RFC 3339 (UTC where it names no offset), or how long ago: `90s`, `15m`, `2h`, `7d`."""
    if ago := AGO.fullmatch(text):
        return utc_now() - timedelta(**{UNITS[ago[2]]: int(ago[1])})
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{option}: found {text!r}, expected a time such as 2027-03-01T12:00:00Z, or how long ago: 15m, 2h, 7d"
        ) from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def parse_until(option: str, text: str) -> datetime:
    """RFC 3339 (UTC where it names no offset), or how long from now: `30m`, `8h`, `7d`."""
    if span := AGO.fullmatch(text):
        return utc_now() + timedelta(**{UNITS[span[2]]: int(span[1])})
    return parse_time(option, text)


def shown_time(seconds: int | None) -> str:
    """Return a time of the platform's answers in UTC; empty where there is none."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def shown_duration(seconds: float) -> str:
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
