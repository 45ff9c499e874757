"""The learning rate of every step: a linear rise to the peak, then what the recipe's schedule says."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from schemas import specification
from schemas.specification import DEFAULT_DECAY_RATIO, Recipe


@dataclass(frozen=True)
class Schedule:
    name: specification.Schedule
    peak: float
    num_steps: int
    warmup_steps: int
    decay_steps: int = 0
    """Number of steps at the end over which `wsd` decays."""

    def rate(self, step: int) -> float:
        """Return the rate of the update that follows `step` completed steps."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        return self.peak * SHAPES[self.name](self, step)

    @property
    def _steps_after_warmup(self) -> int:
        return max(1, self.num_steps - self.warmup_steps)

    def _cosine(self, step: int) -> float:
        """Return (1 + cos(pi * progress)) / 2."""
        progress = min(1.0, (step - self.warmup_steps) / self._steps_after_warmup)
        return 0.5 * (1.0 + math.cos(math.pi * progress))

    def _linear(self, step: int) -> float:
        """Return 1 - progress."""
        return max(0.0, self.num_steps - step) / self._steps_after_warmup

    def _constant(self, _step: int) -> float:
        return 1.0

    def _wsd(self, step: int) -> float:
        """Return 1 until the decay begins, then the share of it that is left (Hu et al., MiniCPM, 2024; a line)."""
        return min(1.0, max(0.0, self.num_steps - step) / max(1, self.decay_steps))


SHAPES: Mapping[str, Callable[[Schedule, int], float]] = {
    "cosine": Schedule._cosine,  # noqa: SLF001 the table of this class
    "linear": Schedule._linear,  # noqa: SLF001
    "constant": Schedule._constant,  # noqa: SLF001
    "wsd": Schedule._wsd,  # noqa: SLF001
}
"""Functions that return the share of the peak after the warm-up, by the name in the recipe."""


def schedule_of(recipe: Recipe, num_steps: int) -> Schedule:
    assert recipe.learning_rate != "auto", "the recipe is resolved before training"
    warmup_steps = math.ceil(recipe.warmup_ratio * num_steps)
    return Schedule(
        name=recipe.schedule,
        peak=recipe.learning_rate * recipe.learning_rate_multiplier,
        num_steps=num_steps,
        warmup_steps=warmup_steps,
        decay_steps=_decay_steps(recipe, num_steps, warmup_steps) if recipe.schedule == "wsd" else 0,
    )


def _decay_steps(recipe: Recipe, num_steps: int, warmup_steps: int) -> int:
    # Both are rounded up, and together they may not be more than there is.
    return min(math.ceil((recipe.decay_ratio or DEFAULT_DECAY_RATIO) * num_steps), num_steps - warmup_steps)
