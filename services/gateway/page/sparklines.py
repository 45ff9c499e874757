"""The training loss of a job as a small picture in its row. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite

from services.gateway.job_readmodels import STEPS_OF_A_SAMPLE
from services.gateway.page import formats

WIDTH, HEIGHT, MARGIN = 88, 20, 2


@dataclass(frozen=True)
class Sparkline:
    lines: tuple[str, ...]
    """Points of polylines, with a gap between them where the loss is not a finite number."""
    last: tuple[float, float] | None
    """Where the newest point is; None where its loss is not a finite number."""
    words: str
    view_box: str = f"0 0 {WIDTH} {HEIGHT}"


def drawn(steps: Sequence[int], losses: Sequence[float]) -> Sparkline | None:
    """Return the picture of a loss from step 0 to the last one, as high as it varies; None without a finite loss."""
    finite = [loss for loss in losses if isfinite(loss)]
    if not finite:
        return None
    lowest, span, last_step = min(finite), max(finite) - min(finite), max(steps[-1], 1)

    def place(step: int, loss: float) -> tuple[float, float]:
        share = (loss - lowest) / span if span else 0.5
        x = MARGIN + (WIDTH - 2 * MARGIN) * step / last_step
        return round(x, 1), round(HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share, 1)

    lines = []
    for is_finite, points in groupby(zip(steps, losses, strict=True), lambda point: isfinite(point[1])):
        if is_finite:
            lines.append(" ".join("{},{}".format(*place(*point)) for point in points))
    newest = place(steps[-1], losses[-1]) if isfinite(losses[-1]) else None
    return Sparkline(tuple(lines), newest, _words(steps, losses, lowest))


def _words(steps: Sequence[int], losses: Sequence[float], lowest: float) -> str:
    ends = f"from {formats.loss(losses[0])} at step {steps[0]:,} to {formats.loss(losses[-1])} at step {steps[-1]:,}"
    means = f"{formats.plural(len(steps), 'point')}, each the mean of up to {STEPS_OF_A_SAMPLE} steps"
    return f"training loss {ends}, lowest {formats.loss(lowest)}; {means}"
