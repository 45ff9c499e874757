"""Faults that are planted into a curve, one kind for each rule that looks at numbers."""

import random
from collections.abc import Callable
from math import exp, log

from bench.alerts.curves import Curve

LEAST_VALIDATIONS = 6

Plant = Callable[[random.Random, Curve, int], None]
"""Changes the curve from the index on."""


def loss_spike(draw: random.Random, curve: Curve, onset: int) -> None:
    """A rise by at least half, and by seven deviations, for 4 to 15 steps, that fades towards its end."""
    rise, length = max(draw.uniform(log(1.5), log(4)), 7 * curve.noise), draw.randint(4, 15)
    for place in range(min(length, len(curve) - onset)):
        curve.losses[onset + place] *= exp(rise * (1 - 0.3 * place / length))


def divergence(draw: random.Random, curve: Curve, onset: int) -> None:
    """A rise by at least half, and by six deviations, within 5 to 80 steps, that stays."""
    rise, length = max(draw.uniform(log(1.5), log(5)), 6 * curve.noise), draw.randint(5, 80)
    level = sorted(curve.losses[max(0, onset - 32) : onset])[16]
    for index in range(onset, len(curve)):
        usual = level if curve.family == "dpo" else curve.losses[index]
        noise = exp(draw.gauss(0, min(curve.noise, 0.2))) if curve.family == "dpo" else 1.0
        curve.losses[index] = max(usual, 0.05) * noise * exp(rise * min(1.0, (index - onset) / length))


def plateau(draw: random.Random, curve: Curve, onset: int) -> None:
    """The level stays where it is."""
    level = sorted(curve.losses[max(0, onset - 32) : onset])[16]
    for index in range(onset, len(curve)):
        curve.losses[index] = level * exp(draw.gauss(0, min(curve.noise, 0.08)))
        curve.rates[index] = max(curve.rates)


def not_finite(draw: random.Random, curve: Curve, onset: int) -> None:
    """Gradients that grow by 1.8 to 3 at each step, until they overflow; the loss follows some steps later."""
    factor, gradient = draw.uniform(1.8, 3.0), curve.gradients[onset]
    for place, index in enumerate(range(onset, len(curve))):
        gradient = min(gradient * factor, 1e300)
        curve.gradients[index] = gradient if gradient < 1e30 else float("inf")
        curve.losses[index] *= exp(min(40.0, 0.15 * max(0, place - 4)))


def gradient_explosion(draw: random.Random, curve: Curve, onset: int) -> None:
    """Gradients of 15 to 80 times their size, for 5 to 30 steps."""
    factor = draw.uniform(15, 80)
    for index in range(onset, min(len(curve), onset + draw.randint(5, 30))):
        curve.gradients[index] *= factor


def memory_leak(draw: random.Random, curve: Curve, onset: int) -> None:
    """A peak that grows by 0.02 % to 0.3 % of itself with every step."""
    growth, size = draw.uniform(0.0002, 0.003), curve.memory[onset]
    for place, index in enumerate(range(onset, len(curve))):
        curve.memory[index] = int(size * (1 + growth * place))


def low_utilization(draw: random.Random, curve: Curve, onset: int) -> None:
    """Devices that wait for data: a tenth to two fifths of the speed."""
    factor = draw.uniform(0.1, 0.4)
    for index in range(onset, len(curve)):
        curve.speeds[index] *= factor
        curve.uses[index] *= factor
        curve.seconds[index] /= factor


def validation_rise(draw: random.Random, curve: Curve, onset: int) -> None:
    """Validation losses, at least six, that rise by 1 % to 4 % from each to the next."""
    growth, lowest = draw.uniform(0.01, 0.04), None
    every = min(curve.validations)
    if (len(curve) - onset) // every < LEAST_VALIDATIONS:
        _validate_more_often(curve, (len(curve) - onset) // (LEAST_VALIDATIONS + 1))
    for place, index in enumerate(sorted(each for each in curve.validations if each >= onset)):
        lowest = lowest if lowest is not None else curve.validations[index]
        curve.validations[index] = lowest * exp(growth * place + draw.gauss(0, 0.003))


def _validate_more_often(curve: Curve, every: int) -> None:
    known = sorted(curve.validations)
    values = [curve.validations[index] for index in known]
    for index in range(every, len(curve), every):
        place = min(len(known) - 1, index * len(known) // len(curve))
        curve.validations.setdefault(index, values[place])


def stall(draw: random.Random, curve: Curve, onset: int) -> None:
    """No step any more."""
    for steps in (
        curve.losses,
        curve.gradients,
        curve.rates,
        curve.speeds,
        curve.memory,
        curve.uses,
        curve.seconds,
    ):
        del steps[onset:]


PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        loss_spike,
        divergence,
        plateau,
        not_finite,
        gradient_explosion,
        stall,
        memory_leak,
        low_utilization,
        validation_rise,
    )
}
ON_RECORDED = ("loss_spike", "divergence", "not_finite", "gradient_explosion", "stall")
"""Faults that the recorded runs are long enough for."""
