"""The learning rate of every step: a linear rise, then half a cosine down to zero."""

import math
from dataclasses import dataclass

from schemas.specification import Recipe


@dataclass(frozen=True)
class Schedule:
    peak: float
    num_steps: int
    warmup_steps: int

    def rate(self, step: int) -> float:
        """Rate of the update that follows `step` completed steps."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, self.num_steps - self.warmup_steps)
        return self.peak * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def schedule_of(recipe: Recipe, num_steps: int) -> Schedule:
    assert recipe.learning_rate != "auto", "the recipe is resolved before training"
    return Schedule(
        peak=recipe.learning_rate * recipe.learning_rate_multiplier,
        num_steps=num_steps,
        warmup_steps=math.ceil(recipe.warmup_ratio * num_steps),
    )
