"""Rules of the training curve: loss and gradient, step by step."""

from itertools import pairwise
from math import exp, log, sqrt

from schemas.alert import AlertRule
from schemas.training import StepMetrics
from services.tracker.decide.reading import Reading
from services.tracker.decide.robust import fall, median, noise, spread
from services.tracker.decide.signals import LEVEL, WINDOW, Signals, are_finite, log_of, mark, newest

BASE = 32
"""Steps whose median a new loss or gradient is compared with."""
MARKS, OF = 3, 4
"""So many of the newest steps must be outliers: a single hard batch is none."""
QUIET = 16
"""Steps without an outlier after which a spike has passed."""
SPIKE_DEVIATIONS = 5.0
SPIKE_RISE = log(1.3)
SMALLEST_NOISE = 0.01
EXPLOSION_DEVIATIONS = 4.5
EXPLOSION_RISE = log(8.0)
OVERFLOW_RISE = log(1_000.0)
RUNAWAY_STEPS = 5
RUNAWAY_FACTOR = log(1.7)
"""Growth of the gradient from each step to the next that, some steps in a row, ends in overflow."""
DIVERGENCE_RISE = log(1.2)
DIVERGENCE_DEVIATIONS = 2.5
DIVERGENCE_STEPS = 12
PLATEAU_FALL = 0.02
"""Share of its loss that a run is expected to lose over the newer half of its steps."""
PLATEAU_ERRORS = 2.5
PLATEAU_BLOCKS = 16
PLATEAU_UNTIL = 0.8
"""Share of the run after which a flat curve is how runs end."""
LOWEST_RATE = 0.3
"""Share of the highest learning rate below which a flat curve follows from the schedule."""
CONVERGED = 0.15
"""Share of the first level below which a loss has nowhere to fall to."""


def loss_spike(signals: Signals, step: StepMetrics) -> Reading | None:
    """Look at a new loss beside those before it: outliers in logarithms and as they are, several of few steps."""
    if not signals.is_warm:
        return None
    base = median(signals.losses[-BASE:])
    loss = log_of(step.loss)
    mark(signals.spikes, loss - base >= SPIKE_RISE and exp(loss) >= _spike_limit(signals, base))
    usual = exp(base)
    if newest(signals.spikes, OF) >= MARKS:
        message = f"loss {step.loss:.4g}, usually {usual:.4g} in the {BASE} steps before"
        limit = _spike_limit(signals, base)
        return Reading(AlertRule.LOSS_SPIKE, True, message, step.loss, limit, "loss")
    return _quiet(AlertRule.LOSS_SPIKE, signals.spikes, f"loss {step.loss:.4g}, usually {usual:.4g}")


def _spike_limit(signals: Signals, base: float) -> float:
    """Return the loss from which on a step is an outlier. `base`: logarithm of the usual one."""
    in_logarithms = max(SPIKE_RISE, SPIKE_DEVIATIONS * max(noise(signals.losses), SMALLEST_NOISE))
    # Losses near zero are spread wide in logarithms, and their outliers are small as they are.
    as_they_are = SPIKE_DEVIATIONS * spread([exp(each) for each in signals.losses])
    return max(exp(base + in_logarithms), exp(base) + max(signals.smallest_rise / 2, as_they_are))


def gradient_explosion(signals: Signals, step: StepMetrics) -> Reading | None:
    if not signals.is_warm:
        return None
    base = median(signals.gradients[-BASE:])
    rise = log_of(step.grad_norm) - base
    limit = max(EXPLOSION_RISE, EXPLOSION_DEVIATIONS * noise(signals.gradients))
    mark(signals.explosions, rise >= limit)
    usual = exp(base)
    message = f"gradient norm {step.grad_norm:.4g}, usually {usual:.4g}"
    if newest(signals.explosions, OF) >= MARKS:
        value, highest = step.grad_norm, usual * exp(limit)
        return Reading(AlertRule.GRADIENT_EXPLOSION, True, message, value, highest, "gradient_norm")
    return _quiet(AlertRule.GRADIENT_EXPLOSION, signals.explosions, message)


def not_finite(signals: Signals, step: StepMetrics) -> Reading | None:
    """Look for numbers that are not finite, and for gradients that are on their way there."""
    if not are_finite(step):
        return Reading(AlertRule.NOT_FINITE, True, f"loss {step.loss}, gradient norm {step.grad_norm}")
    if not signals.is_warm:
        return None
    rise = log_of(step.grad_norm) - median(signals.gradients[-BASE:])
    mark(signals.overflows, rise >= OVERFLOW_RISE)
    message = f"gradient norm {step.grad_norm:.4g}, {exp(rise):.3g} times its usual size"
    if newest(signals.overflows, OF) >= MARKS or _runs_away(signals, step, rise):
        return Reading(AlertRule.NOT_FINITE, True, message, step.grad_norm, unit="gradient_norm")
    return _quiet(AlertRule.NOT_FINITE, signals.overflows, message)


def _runs_away(signals: Signals, step: StepMetrics, rise: float) -> bool:
    if rise < EXPLOSION_RISE:
        return False
    grown = [*signals.gradients[-RUNAWAY_STEPS:], log_of(step.grad_norm)]
    return all(after - before >= RUNAWAY_FACTOR for before, after in pairwise(grown))


def _quiet(rule: AlertRule, marks: list[bool], message: str) -> Reading | None:
    has_passed = len(marks) >= QUIET and not newest(marks, QUIET)
    return Reading(rule, False, message) if has_passed else None


def divergence(signals: Signals) -> Reading | None:
    """Look whether the level of the newest steps has stayed above the lowest level of a whole window."""
    _follow_level(signals)
    if signals.best is None:
        return None
    level = signals.level
    limit = signals.best + max(DIVERGENCE_RISE, DIVERGENCE_DEVIATIONS * signals.usual_noise)
    is_above = level >= limit and exp(level) - exp(signals.best) >= signals.smallest_rise
    signals.above = signals.above + 1 if is_above else 0
    message = f"loss {exp(level):.4g} over {LEVEL} steps, at its best {exp(signals.best):.4g}"
    if signals.above >= DIVERGENCE_STEPS:
        return Reading(AlertRule.DIVERGENCE, True, message, exp(level), exp(limit), "loss")
    return Reading(AlertRule.DIVERGENCE, False, message) if level < (signals.best + limit) / 2 else None


def _follow_level(signals: Signals) -> None:
    """Keep the best level, and the noise while nothing is above it, so that a rise does not hide itself."""
    if len(signals.losses) < WINDOW or signals.num_steps % (WINDOW // 8):
        return
    level, latest = median(signals.losses), noise(signals.losses)
    if signals.best is None:
        signals.best, signals.usual_noise = level, latest
        return
    signals.best = min(signals.best, level)
    if signals.level < signals.best + DIVERGENCE_RISE / 2 + signals.usual_noise:
        signals.usual_noise += 0.1 * (latest - signals.usual_noise)


def plateau(signals: Signals, *, share_done: float | None) -> Reading | None:
    """Look, at the end of each block, whether the newer half of the run has certainly lost less than expected."""
    if signals.block or len(signals.levels) < PLATEAU_BLOCKS or signals.start is None:
        return None
    half = signals.levels[len(signals.levels) // 2 :]
    lost, error = fall(half)
    error = max(error, signals.usual_noise * sqrt(12 / (len(half) * signals.block_steps)))
    steps = len(half) * signals.block_steps
    message = f"loss {exp(half[-1]):.4g} fell by {lost:.2%} over {steps} steps, to within {error:.2%}"
    if lost - PLATEAU_ERRORS * error > PLATEAU_FALL:
        return Reading(AlertRule.PLATEAU, False, message)
    is_flat = abs(lost) + PLATEAU_ERRORS * error < PLATEAU_FALL
    if not is_flat or _may_be_flat(signals, half[-1], share_done):
        return None
    return Reading(AlertRule.PLATEAU, True, message, lost, PLATEAU_FALL, "fraction")


def _may_be_flat(signals: Signals, level: float, share_done: float | None) -> bool:
    assert signals.start is not None, "a plateau is looked for after the warm-up"
    is_late = share_done is not None and share_done > PLATEAU_UNTIL
    is_converged = level - signals.start < log(CONVERGED)
    return is_late or is_converged or signals.rate < LOWEST_RATE * signals.peak_rate
