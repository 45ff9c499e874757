"""The one place that reads the wall clock; decisions get the time as an argument."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)
