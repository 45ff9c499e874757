"""Kueue's performance workload (test/performance/scheduler/configs/baseline/generator.yaml) in the scheduler's terms.

A cohort is a pool, a cluster queue a tenant of it. Kueue counts quota alone: 6 × 20 of a cohort, of which a queue
may borrow all. Here a pool has 24 machines of 5 devices, so that 1, 5 and 20 are a part of a machine, a machine, and
4 machines, which must be wholly free. Kueue's priorities (50, 100, 200) are two tiers: large is premium.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from schemas.base import CapacityType
from schemas.node import PoolCapacityChanged
from schemas.specification import Resources, Tier

SOURCE = "kubernetes-sigs/kueue@ff69552, configs/baseline"
COHORTS = 5
QUEUES = 6
MACHINES = 24
DEVICES_OF_MACHINE = 5


@dataclass(frozen=True)
class WorkloadClass:
    name: str
    count: int
    """Of each queue."""
    interval: float
    seconds: float
    resources: Resources
    tier: Tier
    published_seconds: float
    """Mean time to admission that Kueue's rangespec.yaml states of its own runs."""
    limit_seconds: float
    """What Kueue's check allows it to be."""

    @property
    def devices(self) -> int:
        return self.resources.num_devices


CLASSES = (
    WorkloadClass("small", 350, 0.1, 0.2, Resources(), Tier.STANDARD, 215.468, 260.0),
    WorkloadClass("medium", 100, 0.5, 0.5, Resources(devices_per_node=5), Tier.STANDARD, 76.768, 90.0),
    WorkloadClass("large", 50, 1.2, 1.0, Resources(nodes=4, devices_per_node=5), Tier.PREMIUM, 16.501, 23.0),
)
PUBLISHED_WALL_SECONDS = 351.116
PUBLISHED_WALL_LIMIT_SECONDS = 425.0


@dataclass(frozen=True)
class Workload:
    job_id: str
    tenant: str
    pool: str
    kind: WorkloadClass
    created_at: float
    """Seconds from the beginning."""


def pools() -> list[PoolCapacityChanged]:
    return [
        PoolCapacityChanged(
            pool=f"cohort-{cohort}",
            capacity_type=CapacityType.SPOT,
            nodes=MACHINES,
            free=MACHINES,
            devices_per_node=DEVICES_OF_MACHINE,
            price_per_hour="1",
            tenants=tuple(tenant_of(cohort, queue) for queue in range(QUEUES)),
        )
        for cohort in range(COHORTS)
    ]


def tenant_of(cohort: int, queue: int) -> str:
    return f"cq-{cohort}-{queue}"


def workloads(share: float = 1.0) -> Sequence[Workload]:
    """All of them in the order in which they are created. share: part of each class; 1 is Kueue's own size."""
    return sorted(_of_every_queue(share), key=lambda each: (each.created_at, each.job_id))


def _of_every_queue(share: float) -> Iterator[Workload]:
    for cohort in range(COHORTS):
        for queue in range(QUEUES):
            for kind in CLASSES:
                for number in range(round(kind.count * share)):
                    name = f"ftjob-{kind.name}-{cohort}-{queue}-{number}"
                    created_at = (number + 1) * kind.interval
                    yield Workload(name, tenant_of(cohort, queue), f"cohort-{cohort}", kind, created_at)


def least_seconds(share: float = 1.0) -> float:
    """Return what no scheduler is faster than: each pool full from the beginning, or the last one created and run."""
    work = sum(round(kind.count * share) * kind.devices * kind.seconds for kind in CLASSES)
    last = max(round(kind.count * share) * kind.interval + kind.seconds for kind in CLASSES)
    return max(QUEUES * work / (MACHINES * DEVICES_OF_MACHINE), last)
