"""The one place that reads the wall clock. Decisions get the time as an argument."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)
