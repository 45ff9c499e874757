"""What a run of the fleet was like: work, waits, fairness, money."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.fleet.incidents import IncidentKind
from bench.fleet.oracle import FairFleet
from bench.fleet.simulation import Run, Simulation
from bench.fleet.workload import DEVICES_OF_MACHINE
from bench.report import percentile
from schemas.specification import Tier

HOUR = 3600.0
GRAIN = 600.0
"""Seconds that any tenant may wait: machines are whole, and no job stops for another."""
MANY = 100
"""Jobs of a tenant from which on the 99th percentile is not its longest wait."""
SIZES: Mapping[str, range] = {"1-8": range(1, 9), "16-64": range(16, 65), "128-512": range(128, 513)}
"""Classes of jobs, by their devices."""


def measured(simulation: Simulation, fair: FairFleet, bound: float, *, since: float) -> dict[str, Any]:
    """Return all numbers of a run. bound: device seconds of work that no policy can exceed by the end; since: from
    when on utilisation and waits count, the fleet being empty at first.
    """
    spent = simulation.spent
    runs = [run for run in simulation.runs.values() if run.job.submitted_at >= since]
    return {
        "goodput_of_bound": spent.useful / bound,
        "utilisation": _utilisation(simulation, since),
        "gpu_hours": {
            "useful": spent.useful / HOUR,
            "starting": spent.starting / HOUR,
            "checkpoints": spent.checkpoints / HOUR,
            "lost": spent.lost / HOUR,
        },
        "dollars": spent.dollars,
        "dollars_per_useful_gpu_hour": spent.dollars / (spent.useful / HOUR),
        "jobs_ended": sum(run.ended_at is not None for run in simulation.runs.values()),
        "jobs_waiting_at_the_end": sum(1 for _ in simulation.still_waiting()),
        "interrupted_attempts": {kind.value: simulation.interruptions[kind] for kind in IncidentKind},
        "cordoned_machines": simulation.interruptions["cordoned"],
        "wait_minutes": minutes(run.waited for run in runs),
        "wait_minutes_by_tier": {
            tier.value: minutes(run.waited for run in runs if run.job.tier is tier) for tier in Tier
        },
        "wait_minutes_by_size": {
            name: minutes(run.waited for run in runs if run.job.devices in sizes)
            for name, sizes in SIZES.items()
        },
        "tenants": of_tenants(runs, fair),
        "tenants_by_jobs_of_one_machine": of_tenants(
            [run for run in runs if run.job.devices <= DEVICES_OF_MACHINE], fair
        ),
        "fairness": jain(_served(simulation, fair)),
    }


def of_fair_fleet(runs: Sequence[Run], fair: FairFleet, bound: float, *, since: float) -> dict[str, Any]:
    """Return the same of the fair fleet, as far as there is such a thing."""
    runs = [run for run in runs if run.job.submitted_at >= since]
    return {
        "goodput_of_bound": fair.useful / bound,
        "wait_minutes": minutes(fair.waits[run.job.id] for run in runs),
        "wait_minutes_by_tier": {
            tier.value: minutes(fair.waits[run.job.id] for run in runs if run.job.tier is tier)
            for tier in Tier
        },
        "wait_minutes_by_size": {
            name: minutes(fair.waits[run.job.id] for run in runs if run.job.devices in sizes)
            for name, sizes in SIZES.items()
        },
    }


def minutes(seconds: Iterable[float]) -> dict[str, float]:
    waits = sorted(seconds)
    if not waits:
        return {}
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(percentile(waits, share) / 60, 2) for name, share in shares.items()}


def of_tenants(runs: Iterable[Run], fair: FairFleet) -> dict[str, Any]:
    """Return how many tenants wait longer than twice their fair wait, each by the 99th percentile of its jobs."""
    by_tenant = defaultdict[str, list[Run]](list)
    for run in runs:
        by_tenant[run.job.tenant].append(run)
    p99 = {
        tenant: (
            percentile([run.waited for run in jobs], 0.99),
            percentile([fair.waits[run.job.id] for run in jobs], 0.99),
        )
        for tenant, jobs in by_tenant.items()
    }
    beyond = {tenant: waited for tenant, (waited, due) in p99.items() if waited > max(2 * due, GRAIN)}
    return {
        "tenants": len(p99),
        "beyond_twice_the_fair_p99": len(beyond),
        "of_those_with_many_jobs": sum(len(by_tenant[tenant]) >= MANY for tenant in beyond),
        "with_many_jobs": sum(len(jobs) >= MANY for jobs in by_tenant.values()),
        "longest_p99_beyond_hours": max(beyond.values(), default=0.0) / HOUR,
        "p99_minutes": minutes(waited for waited, _ in p99.values()),
        "fair_p99_minutes": minutes(due for _, due in p99.values()),
    }


def jain(values: Iterable[float]) -> float:
    """Jain's index: 1 where all have as much of what is due to them, 1 / n where one has all."""
    parts = list(values)
    return sum(parts) ** 2 / (len(parts) * sum(part * part for part in parts))


def _served(simulation: Simulation, fair: FairFleet) -> list[float]:
    """Of each tenant, what it was served of what it gets in the fair fleet."""
    served = defaultdict[str, float](float)
    for run in simulation.runs.values():
        served[run.job.tenant] += run.trained * run.job.devices
    return [served[tenant] / due for tenant, due in fair.service.items() if due > 0]


def _utilisation(simulation: Simulation, since: float) -> float:
    samples = [sample for sample in simulation.samples if sample.at >= since]
    return sum(sample.booked for sample in samples) / sum(sample.usable for sample in samples)
