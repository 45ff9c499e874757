"""Rule of the validation loss: it has risen from its lowest."""

from math import exp, isfinite, sqrt

from schemas.alert import AlertRule
from services.tracker.decide.reading import Reading
from services.tracker.decide.robust import NORMAL, median
from services.tracker.decide.signals import KEPT_VALIDATIONS, Signals, log_of

LOSSES = ("full_valid_loss", "valid_loss")
"""Numbers of a bundle or a validation that the rule follows, each on its own."""
IN_A_ROW = 3
"""Validations after the lowest that must all be above it."""
SMALLEST_RISE = 0.02
"""Rise of the newest one relative to the lowest."""
DEVIATIONS = 4.0
SMALLEST_SHARE = 0.01
"""Share of the first validation loss below which no rise counts."""


def validation_rise(signals: Signals, name: str, step: int, loss: float) -> Reading | None:
    """Look at a new validation loss, which is measured on the same texts as those before it."""
    known = signals.validations.setdefault(name, [])
    if not isfinite(loss) or (known and step <= known[-1][0]):
        return None
    known.append((step, log_of(loss)))
    del known[1:-KEPT_VALIDATIONS]  # the first one stays
    losses = [each for _, each in known]
    lowest = min(losses)
    since = losses[losses.index(lowest) + 1 :]
    message = f"validation loss {loss:.4g}, at its lowest {exp(lowest):.4g}"
    if not since:
        return Reading(AlertRule.VALIDATION_RISE, False, message)
    rise = max(SMALLEST_RISE, DEVIATIONS * _noise(losses))
    is_large = loss - exp(lowest) >= SMALLEST_SHARE * exp(losses[0])
    if (
        len(since) >= IN_A_ROW
        and min(since[-IN_A_ROW:]) > lowest
        and losses[-1] - lowest >= rise
        and is_large
    ):
        return Reading(AlertRule.VALIDATION_RISE, True, message, loss, exp(lowest + rise), "loss")
    return None


def _noise(losses: list[float]) -> float:
    """Return the standard deviation about a curve that bends slowly, by second differences of neighbours."""
    triples = zip(losses, losses[1:], losses[2:], strict=False)
    bends = [abs(first - 2 * second + third) for first, second, third in triples]
    return NORMAL * median(bends) / sqrt(6) if bends else 0.0
