"""Curves without a fault: simulated families, and those that `bench.alerts.record` has recorded."""

import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import cos, exp, log, pi
from pathlib import Path

RECORDED = Path(__file__).with_name("recorded.json.gz")
FAMILIES = ("lora", "full", "dpo", "cpt")
LEAST_FALL = 0.04
"""A simulated curve without a fault loses at least this share of its loss over the newer half, up to 80 % of it."""


@dataclass
class Curve:
    """A run, step by step. Faults are planted by changing the lists."""

    name: str
    family: str
    losses: list[float]
    gradients: list[float]
    rates: list[float]
    speeds: list[float]
    memory: list[int]
    uses: list[float]
    seconds: list[float]
    """Time that each step took."""
    validations: dict[int, float] = field(default_factory=dict)
    """Loss on the validation file, by the index of the step after which it was measured."""
    noise: float = 0.05
    """Deviation of the loss, in logarithms."""
    resumed_at: int | None = None
    """Index of the step before which the attempt ended and, hours later, the next one began."""
    num_epochs: int = 1

    def __len__(self) -> int:
        return len(self.losses)


def simulated(draw: random.Random, family: str, *, least: int = 600, most: int = 2400) -> Curve:
    count = draw.randint(least, most)
    level = _falling_level(draw, family, count)
    sigma = {"lora": (0.03, 0.12), "full": (0.02, 0.08), "dpo": (0.03, 0.08), "cpt": (0.01, 0.05)}[family]
    noise = draw.uniform(*sigma)
    spreads = [noise * (1 + 6 * step / count if family == "dpo" else 1) for step in range(count)]
    seconds = draw.uniform(2, 16)
    speed = draw.uniform(500, 50_000)
    curve = Curve(
        name=f"{family} {count}",
        family=family,
        losses=[loss * exp(each) for loss, each in zip(level, _noise(draw, spreads), strict=True)],
        gradients=_gradients(draw, count),
        rates=_rates(draw, count),
        speeds=_speeds(draw, count, speed),
        memory=_memory(draw, count),
        uses=[min(1.0, max(0.0, draw.gauss(0.9, 0.05))) for _ in range(count)],
        seconds=[seconds * exp(draw.gauss(0, 0.1)) for _ in range(count)],
        noise=max(spreads),
        resumed_at=draw.randint(count // 4, count // 2) if draw.random() < 0.2 else None,
    )
    _validate(curve, draw, level, every=draw.randint(40, 200))
    return curve


def recorded(draw: random.Random) -> list[Curve]:
    """Return the recorded runs at the pace of larger ones: a step of the tiny model takes milliseconds."""
    curves = []
    for run in json.loads(gzip.decompress(RECORDED.read_bytes())):
        count, seconds = len(run["loss"]), draw.uniform(2, 16)
        ratios = [log(b / a) for a, b in zip(run["loss"], run["loss"][1:], strict=False)]
        curves.append(
            Curve(
                name=f"recorded {run['name']}",
                family="recorded",
                losses=run["loss"],
                gradients=run["grad_norm"],
                rates=run["learning_rate"],
                speeds=_speeds(draw, count, 1000.0),
                memory=[mib * 2**20 for mib in run["memory_mib"]],
                uses=[0.9] * count,
                seconds=[seconds] * count,
                noise=(sum(each**2 for each in ratios) / len(ratios) / 2) ** 0.5,
                num_epochs=run["num_epochs"],
            )
        )
    return curves


def _falling_level(draw: random.Random, family: str, count: int) -> list[float]:
    while True:
        start, end = {
            "lora": (draw.uniform(1.5, 3.0), draw.uniform(0.6, 1.3)),
            "full": (draw.uniform(1.5, 3.5), draw.uniform(0.3, 1.2)),
            "dpo": (0.693, draw.uniform(0.005, 0.3)),
            "cpt": (draw.uniform(3.0, 11.0), draw.uniform(1.5, 2.8)),
        }[family]
        bend, pace = draw.uniform(0.2, 0.6), draw.uniform(5, 60)
        slope = draw.uniform(0.0, 0.3)
        level = [
            end * exp(-slope * step / count) + (start - end) * (1 + step / pace) ** -bend
            for step in range(count)
        ]
        if family == "dpo":
            fade = draw.uniform(0.2, 0.6) * count
            level = [end + (start - end) * exp(-step / fade) for step in range(count)]
        if _falls(level):
            return level


def _falls(level: Sequence[float]) -> bool:
    ends = range(512, int(0.8 * len(level)), 64)
    return all(log(level[end // 2] / level[end]) >= LEAST_FALL for end in ends)


def _noise(draw: random.Random, spreads: Sequence[float]) -> list[float]:
    """Noise of batches: mostly independent, some of it shared by neighbours, one in a hundred far off."""
    values, slow = [], 0.0
    for spread in spreads:
        slow = 0.8 * slow + 0.6 * draw.gauss(0, 0.4 * spread)
        wild = draw.expovariate(1 / (3 * spread)) if draw.random() < 0.01 else 0.0
        values.append(draw.gauss(0, 0.9 * spread) + slow + wild)
    return values


def _gradients(draw: random.Random, count: int) -> list[float]:
    scale, spread = draw.uniform(0.2, 5), draw.uniform(0.15, 0.5)
    return [
        scale
        * (0.4 + 2 * (1 + step / 20) ** -0.5)
        * exp(draw.gauss(0, spread) + (draw.expovariate(1.0) if draw.random() < 0.01 else 0))
        for step in range(count)
    ]


def _rates(draw: random.Random, count: int) -> list[float]:
    schedule, warm_up, peak = draw.choice(("cosine", "linear", "constant")), 0.03 * count, 2e-4
    shares = [step / count for step in range(count)]
    by_name: dict[str, Callable[[float], float]] = {
        "cosine": lambda share: (1 + cos(pi * share)) / 2,
        "linear": lambda share: 1 - share,
        "constant": lambda share: 1.0,
    }
    fading = by_name[schedule]
    return [peak * min(1.0, (step + 1) / warm_up) * fading(share) for step, share in enumerate(shares)]


def _speeds(draw: random.Random, count: int, speed: float) -> list[float]:
    """Tokens per second: steady, one step in fifty at half speed, and short slumps beside a checkpoint."""
    spread, slump = draw.uniform(0.02, 0.1), 0
    values = []
    for _ in range(count):
        slump = draw.randint(1, 3) if draw.random() < 0.005 else max(0, slump - 1)
        slow = 0.4 if slump or draw.random() < 0.02 else 1.0
        values.append(speed * slow * exp(draw.gauss(0, spread)))
    return values


def _memory(draw: random.Random, count: int) -> list[int]:
    """A peak so far: the largest of the steps' needs, which rises by a jump where a validation begins."""
    base, spread = draw.uniform(4, 70) * 2**30, draw.uniform(0.0, 0.05)
    jump = draw.randint(50, 400)
    peak, values = 0.0, []
    for step in range(count):
        need = base * (1 + draw.uniform(0, spread) + (0.03 if step >= jump else 0.0))
        peak = max(peak, need)
        values.append(int(peak))
    return values


def _validate(curve: Curve, draw: random.Random, level: Sequence[float], *, every: int) -> None:
    for index in range(every, len(curve), every):
        curve.validations[index] = 1.05 * level[index] * exp(draw.gauss(0, 0.003))
        curve.seconds[index] += draw.uniform(5, 60)
