"""How the page writes numbers: each with its unit, one way each, and never a zero for what is not known. Pure."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite

from schemas import numbers
from schemas.alert import AlertUnit
from schemas.placement import leases_in_words

UNKNOWN = "unknown"
"""For what was not measured."""
NONE = "–"
"""For what does not apply."""

plural = numbers.plural
MINUTE, HOUR, DAY = 60, 3600, 86_400


def setting(value: object) -> str:
    """Write a setting as people type it in a recipe."""
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value)) or NONE
    if isinstance(value, float):
        return numbers.shortest(value)
    return NONE if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def whole(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def loss(value: float | None) -> str:
    """Four digits, so that two losses of one run can be told apart."""
    if value is None:
        return UNKNOWN
    if not isfinite(value):
        return "not a number"
    if value == 0 or 0.001 <= abs(value) < 10_000:
        return f"{value:#.4g}".rstrip(".")
    return _power(value, digits=3)


def learning_rate(value: float | None) -> str:
    """`2e-4`, as people write rates, with three digits."""
    if value is None:
        return UNKNOWN
    return "0" if value == 0 else numbers.shortest(float(f"{value:.3g}"))


def _power(value: float, *, digits: int) -> str:
    mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"


def percent(share: float | None) -> str:
    """`share`: from 0 to 1."""
    return UNKNOWN if share is None else f"{share * 100:.1f} %"


def points(value: float | None) -> str:
    """A difference of two percentages, with its sign."""
    return UNKNOWN if value is None else f"{value:+.1f} pt"


def compact(number: float | None, unit: str) -> str:
    """`10.2 M tokens`; below a thousand the number itself."""
    if number is None:
        return UNKNOWN
    for size, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if abs(number) >= size:
            return f"{number / size:.1f} {letter} {unit}"
    return f"{number:,.0f} {unit}"


def tokens(number: int | None) -> str:
    return compact(number, "tokens")


def speed(tokens_per_second: float | None) -> str:
    return compact(tokens_per_second, "tokens/s")


def size(num_bytes: int | None) -> str:
    if num_bytes is None:
        return UNKNOWN
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1024**power:
            return f"{num_bytes / 1024**power:.1f} {unit}"
    return f"{num_bytes:,} B"


def measured(value: float | None, unit: AlertUnit | None) -> str:
    """Write a number of an alert with its unit."""
    if value is None:
        return NONE
    match unit:
        case "fraction":
            return percent(value)
        case "seconds":
            return duration(value)
        case "bytes":
            return size(round(value))
        case "tokens_per_second":
            return speed(value)
        case "us_dollars":
            return money(str(value))
    return loss(value)


def money(dollars: Decimal | str | None) -> str:
    return UNKNOWN if dollars is None else numbers.money(Decimal(dollars))


def duration(seconds: float | None) -> str:
    """`850 ms`, `41 s`, `2 h 05 min`, `3 d 4 h`."""
    if seconds is None:
        return UNKNOWN
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    whole_seconds = round(seconds)
    if whole_seconds < MINUTE:
        return f"{whole_seconds} s"
    if whole_seconds < HOUR:
        minutes, rest = divmod(whole_seconds, MINUTE)
        return f"{minutes} min {rest:02} s" if minutes < 5 and rest else f"{minutes} min"
    if whole_seconds < DAY:
        return f"{whole_seconds // HOUR} h {whole_seconds % HOUR // MINUTE:02} min"
    return f"{whole_seconds // DAY} d {whole_seconds % DAY // HOUR} h"


def span(low: float, high: float) -> str:
    """An estimate as a range: `36-50 min`; one number where both ends read alike."""
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s")):
        if low >= 2 * unit or unit == 1:
            first, last = round(low / unit), round(high / unit)
            return f"{first} {name}" if first == last else f"{first}-{last} {name}"
    raise AssertionError("seconds take every number")


def money_span(low: Decimal, high: Decimal) -> str:
    """An estimate as a range: `$0.12-0.31`; one sum where both ends read alike."""
    first, last = money(low), money(high)
    if first == last or last.startswith("under"):
        return last
    return f"{first}-{last.removeprefix('$')}" if first.startswith("$") else f"up to {last}"


def moment(time: datetime) -> str:
    """The exact time with its zone."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock(time: datetime) -> str:
    return f"{time.astimezone(UTC):%H:%M:%S}"


def day_and_clock(time: datetime) -> str:
    return f"{time.astimezone(UTC):%m-%d %H:%M:%S}"


def ago(time: datetime, *, now: datetime) -> str:
    """`4 min ago`; two clocks that differ a little give `just now`."""
    seconds = (now - time).total_seconds()
    if seconds < 5:
        return "just now" if seconds > -5 else f"in {duration(-seconds)}"
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s")):
        if seconds >= unit:
            return f"{int(seconds // unit)} {name} ago"
    raise AssertionError("five seconds and more are some seconds")


def short(digest: str | None) -> str:
    """The first characters of a digest, by which people compare them."""
    return NONE if digest is None else digest[:12]


FILTERS: dict[str, Callable[..., str]] = {
    function.__name__: function
    for function in (
        setting, whole, loss, learning_rate, percent, points, tokens, speed, size, money, money_span, duration, span,
        moment, clock, day_and_clock, ago, plural, short, leases_in_words, measured,
    )
}  # fmt: skip
"""What templates may write numbers with."""
