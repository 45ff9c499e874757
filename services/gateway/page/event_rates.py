"""How many events a minute there were in the last hour, as bars. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from services.gateway.page import formats

MINUTES = 60
BAR, GAP, HEIGHT = 8, 2, 40
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Bar:
    x: int
    y: float
    height: float
    title: str


@dataclass(frozen=True)
class Rate:
    bars: tuple[Bar, ...]
    """Of the minutes with events, the oldest first."""
    words: str
    view_box: str = f"0 0 {MINUTES * BAR} {HEIGHT}"
    bar_width: int = BAR - GAP


def minute_of(time: datetime) -> datetime:
    return time.replace(second=0, microsecond=0)


def drawn(counts: Mapping[datetime, int], *, now: datetime, is_whole: bool) -> Rate:
    """`counts`: events by the minute in which they were sent. `is_whole`: whether all of the hour were counted."""
    first = minute_of(now) - (MINUTES - 1) * MINUTE
    known = {at: count for at, count in sorted(counts.items()) if first <= at <= now}
    most, total = max(known.values(), default=0), sum(known.values())
    bars = []
    for at, count in known.items():
        height = round(HEIGHT * count / most, 1)
        title = f"{at:%H:%M} UTC: {formats.plural(count, 'event')}"
        bars.append(Bar(BAR * ((at - first) // MINUTE), round(HEIGHT - height, 1), height, title))
    words = f"{'' if is_whole else 'the newest '}{formats.plural(total, 'event')} of the last hour"
    return Rate(tuple(bars), f"{words}, at most {most:,} a minute" if most else words)
