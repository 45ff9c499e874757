"""What a rule says of an attempt at one moment."""

from dataclasses import dataclass

from schemas.alert import AlertRule, AlertUnit


@dataclass(frozen=True)
class Reading:
    """Whether something is wrong, or has passed. A rule that can say neither returns none."""

    rule: AlertRule
    is_wrong: bool
    message: str
    value: float | None = None
    limit: float | None = None
    unit: AlertUnit | None = None
    """Unit of value and limit."""
