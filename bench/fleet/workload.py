"""Jobs of a fleet, drawn so that their sizes and run times have the figures that were published of real ones.

Sizes and run times by themselves are of no trace: they are drawn, and three figures of theirs are those of traces.
A run time is lognormal, its median grows with a power of the job's size, and none is longer than three days; the
three free numbers follow from
  874 s, the median run time, and 18,006 s, the mean: Philly (Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU
    Clusters for DNN Training Workloads", ATC 2019), as summed up in the repository of the Acme trace (Hu et al.,
    "Characterization of Large Language Model Development in the Datacenter", NSDI 2024);
  37.5 GPU hours a job: 150 million in 4 million jobs on 24,000 A100 (Kokolis et al., "Revisiting Reliability in
    Large-Scale Machine Learning Research Clusters", HPCA 2025).
The median job takes one GPU, as in most traces of that summary; the mean of 5.2 lies between Helios (3.7; Hu et al.,
"Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021) and Seren, part
of Acme (5.7). A job here has at most 512 GPUs, for the platform takes no larger one; Helios had one of 2,048. That a
few tenants submit most, that jobs come by day and one after the other, what they state and what kinds of GPU will do
are assumptions: the numbers below say which.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from schemas.base import CapacityType, DeviceKind
from schemas.specification import Resources, Tier

DAY = 24 * 3600
LONGEST = 3 * DAY
SIZES = {
    1: 0.60,
    2: 0.12,
    4: 0.09,
    8: 0.135,
    16: 0.024,
    32: 0.014,
    64: 0.0095,
    128: 0.0045,
    256: 0.0024,
    512: 0.0006,
}
"""GPUs -> part of the jobs."""
MEDIAN_OF_ONE_GPU = 736.3
SPREAD = 2.980
"""Standard deviation of the logarithm of the run time."""
GROWTH = 0.252
"""The median run time is that of one GPU times the size to this power."""
DEVICES_OF_MACHINE = 8

ACCELERATORS: Sequence[tuple[tuple[str, ...], float, float]] = (
    ((), 0.5, 0.1),
    (("H100", "A100"), 0.3, 0.4),
    (("H100",), 0.2, 0.5),
)
"""What will do, for part of the jobs within a machine, and of larger ones."""
ON_DEMAND_FROM = 128
"""GPUs from which on a job takes nothing that may be taken back."""
ON_DEMAND = 0.5
"""Part of the smaller jobs that do so, too."""
STATING = 0.5
"""Part of the jobs that state how long they may run."""
STATED = (1.2, 3.0)
"""Times the run time; between them evenly."""
PREMIUM = 0.2
"""Part of the tenants."""
RUN_OF_SWEEP = 0.5
"""Of how many jobs another one like it comes from the same tenant within minutes."""
BY_DAY = 0.6
"""Submissions are so much more frequent at noon than on average, and so much rarer at midnight."""
ON_WEEKEND = 0.6
"""Submissions of a day of the weekend, of a weekday's."""


@dataclass(frozen=True)
class Sizing:
    """How large a fleet is, and what is asked of it."""

    name: str
    pools: tuple["PoolSize", ...]
    jobs_a_week: int
    tenants: int
    largest: int = 512
    """Larger jobs take so many GPUs instead."""
    times: float = 1.0
    """Run times, of those that were drawn."""

    @property
    def devices(self) -> int:
        return sum(pool.machines for pool in self.pools) * DEVICES_OF_MACHINE


@dataclass(frozen=True)
class PoolSize:
    name: str
    accelerator: str
    capacity_type: CapacityType
    machines: int
    price_per_device_hour: str
    """US dollars."""


SPOT, STEADY = CapacityType.SPOT, CapacityType.ON_DEMAND
LARGE = Sizing(
    "24,000 GPUs",
    (
        PoolSize("h100-1", "H100", STEADY, 768, "2.99"),
        PoolSize("h100-2", "H100", STEADY, 512, "2.99"),
        PoolSize("h100-spot", "H100", SPOT, 512, "1.79"),
        PoolSize("a100", "A100", STEADY, 512, "1.79"),
        PoolSize("a100-spot", "A100", SPOT, 256, "1.07"),
        PoolSize("l40s", "L40S", STEADY, 440, "0.99"),
    ),
    jobs_a_week=100_000,
    tenants=500,
)
SMALL = Sizing(
    "240 GPUs",
    (
        PoolSize("h100", "H100", STEADY, 22, "2.99"),
        PoolSize("h100-spot", "H100", SPOT, 8, "1.79"),
    ),
    jobs_a_week=1_000,
    tenants=20,
    largest=32,
    times=1.8,
)
"""With 50 jobs at once and 1,000 a week one takes 8.4 hours: 1.8 times what it takes in the traces."""


@dataclass(frozen=True)
class SimulatedJob:
    number: int
    tenant: str
    tier: Tier
    submitted_at: float
    """Seconds from the beginning."""
    resources: Resources
    seconds: float
    """What it trains, if nothing interrupts it."""

    @property
    def id(self) -> str:
        return f"job-{self.number:06}"

    @property
    def devices(self) -> int:
        return self.resources.num_devices


def jobs(sizing: Sizing, *, days: float, seed: int) -> list[SimulatedJob]:
    """Return the jobs in the order of their submission."""
    draw = random.Random(f"workload {sizing.name} {seed}")
    tiers = [Tier.PREMIUM if draw.random() < PREMIUM else Tier.STANDARD for _ in range(sizing.tenants)]
    shares = [1 / (number + 1) for number in range(sizing.tenants)]
    drawn: list[SimulatedJob] = []
    for at in _submissions(sizing, days, draw):
        like = drawn[-1] if drawn and draw.random() < RUN_OF_SWEEP else None
        if like is None:
            [tenant] = draw.choices(range(sizing.tenants), shares)
            size = _size(sizing, draw)
            name, tier = f"tenant-{tenant:03}", tiers[tenant]
        else:
            name, tier, size = like.tenant, like.tier, like.devices
        seconds = _run_time(size, sizing.times, draw)
        resources = _resources(size, seconds, draw)
        drawn.append(SimulatedJob(len(drawn), name, tier, at, resources, seconds))
    return drawn


def _submissions(sizing: Sizing, days: float, draw: random.Random) -> Iterator[float]:
    """More by day than by night, more in the week than at its end; the first day is a Monday."""
    a_day = sizing.jobs_a_week / (5 + 2 * ON_WEEKEND)
    most = a_day * (1 + BY_DAY) / DAY
    at = draw.expovariate(most)
    while at < days * DAY:
        of_week = 1.0 if int(at // DAY) % 7 < 5 else ON_WEEKEND
        of_day = 1 - BY_DAY * math.cos(2 * math.pi * at / DAY)
        if draw.random() < of_week * of_day * a_day / DAY / most:
            yield at
        at += draw.expovariate(most)


def _size(sizing: Sizing, draw: random.Random) -> int:
    [size] = draw.choices([*SIZES], [*SIZES.values()])
    return min(size, sizing.largest)


def _run_time(size: int, times: float, draw: random.Random) -> float:
    median = math.log(times * MEDIAN_OF_ONE_GPU) + GROWTH * math.log(size)
    return min(LONGEST, max(10.0, draw.lognormvariate(median, SPREAD)))


def _resources(size: int, seconds: float, draw: random.Random) -> Resources:
    nodes = max(1, size // DEVICES_OF_MACHINE)
    [accelerators] = draw.choices(
        [words for words, *_ in ACCELERATORS], [parts[nodes > 1] for _, *parts in ACCELERATORS]
    )
    is_steady = size >= ON_DEMAND_FROM or draw.random() < ON_DEMAND
    stated = seconds * draw.uniform(*STATED) + 600 if draw.random() < STATING else None
    return Resources(
        nodes=nodes,
        devices_per_node=min(size, DEVICES_OF_MACHINE),
        device=DeviceKind.CUDA,
        accelerators=accelerators,
        capacity_type=CapacityType.ON_DEMAND if is_steady else "spot-first",
        max_run_seconds=stated,
    )
