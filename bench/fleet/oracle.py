"""What no policy can beat, and what each tenant would wait if the fleet could be divided at will.

The most work. Let A(t) be the device seconds that all jobs would have trained by t had each begun when it was
submitted, and C(t) the devices that are there at t, machines that are away left out. Whatever a policy does, it has
not trained more than A(t) by t, and between t and T not more than the devices there allow: so by T never more than
A(t) + integral of C from t to T, and the least of these over all t is the bound. It knows no machines, no kinds of
device, no gangs, no starts, no checkpoints and no failures but the devices that they take away.

The fair fleet. All devices are alike and divisible, jobs stop and continue at no cost, nothing is lost. At each
moment devices are divided max-min by the tenants' weights (1, premium 2): nobody gets more than all its jobs ask for,
and what one leaves is the others'. A tenant's jobs get them in the order of their submission, each up to its size. A
job's fair wait is what it takes there longer than its run time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.fleet.incidents import Incident, IncidentKind
from bench.fleet.workload import DEVICES_OF_MACHINE, SimulatedJob, Sizing
from services.scheduler.decide.queue import WEIGHTS

STEP = 60.0
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FairFleet:
    waits: Mapping[str, float]
    """Job -> seconds, of all jobs."""
    service: Mapping[str, float]
    """Tenant -> device seconds."""
    useful: float
    """Device seconds."""


def usable(sizing: Sizing, incidents: Sequence[Incident], end: float) -> Floats:
    """Return the devices that are there on average in each step, where every machine is repaired at once."""
    change = np.zeros(int(end / STEP) + 2)
    for incident in incidents:
        if incident.kind is not IncidentKind.INTERRUPTED:
            first, last = int(incident.at / STEP), int(min(incident.until, end) / STEP)
            change[first] -= DEVICES_OF_MACHINE
            change[last] += DEVICES_OF_MACHINE
    steps: Floats = sizing.devices + np.cumsum(change)
    return steps[: int(end / STEP)]


def most_work(jobs: Sequence[SimulatedJob], capacity: Floats, end: float) -> float:
    """Return the bound of all that can be trained by the end, in device seconds."""
    change = np.zeros(len(capacity) + 1)
    level = np.zeros(len(capacity) + 1)
    for job in jobs:
        until = min(end, job.submitted_at + job.seconds)
        _spread(change, level, job.submitted_at, until, float(job.devices))
    asked = np.cumsum(np.cumsum(change[:-1]) * STEP + level[:-1])
    could = np.concatenate([[0.0], asked])
    left = np.concatenate([[0.0], np.cumsum(capacity[::-1] * STEP)])[::-1]
    return float(np.min(could + left))


def _spread(change: Floats, level: Floats, since: float, until: float, devices: float) -> None:
    """Add the device seconds of a job to the steps that it runs in: to whole ones by a rate, to its ends exactly."""
    first, last = int(since // STEP), int(until // STEP)
    if first == last:
        level[first] += devices * (until - since)
        return
    level[first] += devices * ((first + 1) * STEP - since)
    level[last] += devices * (until - last * STEP)
    change[first + 1] += devices
    change[last] -= devices


def fair_fleet(jobs: Sequence[SimulatedJob], capacity: Floats, end: float) -> FairFleet:
    tenants = sorted({job.tenant for job in jobs})
    number = {tenant: index for index, tenant in enumerate(tenants)}
    weights = np.zeros(len(tenants))
    for job in jobs:
        weights[number[job.tenant]] = WEIGHTS[job.tier]
    owner = np.array([number[job.tenant] for job in jobs])
    size = np.array([float(job.devices) for job in jobs])
    submitted = np.array([job.submitted_at for job in jobs])
    left = np.array([job.seconds for job in jobs])
    done_at = np.full(len(jobs), np.inf)
    active = np.zeros(0, dtype=np.int64)
    coming = 0
    for step, devices in enumerate(capacity):
        until = (step + 1) * STEP
        first = coming
        while coming < len(jobs) and submitted[coming] < until:
            coming += 1
        if coming > first:
            active = np.concatenate([active, np.arange(first, coming)])
            active = active[np.argsort(owner[active], kind="stable")]
        if not len(active):
            continue
        rate = _rates(owner[active], size[active], weights, float(devices)) / size[active]
        there = np.minimum(STEP, until - submitted[active])
        needed = np.divide(left[active], rate, out=np.full(len(active), np.inf), where=rate > 0)
        ends = needed <= there
        done_at[active[ends]] = until - there[ends] + needed[ends]
        left[active] = np.where(ends, 0.0, left[active] - rate * there)
        active = active[~ends]
    seconds = np.array([job.seconds for job in jobs])
    trained = seconds - left
    waits = np.where(np.isinf(done_at), end - submitted - trained, done_at - submitted - seconds)
    service = np.bincount(owner, weights=trained * size, minlength=len(tenants))
    return FairFleet(
        {job.id: max(0.0, float(wait)) for job, wait in zip(jobs, waits, strict=True)},
        {tenant: float(got) for tenant, got in zip(tenants, service, strict=True)},
        float(np.sum(trained * size)),
    )


def _rates(owner: npt.NDArray[np.int64], size: Floats, weights: Floats, devices: float) -> Floats:
    """Return the devices of each job; jobs are in the order of their owners, each owner's the oldest first."""
    demand = np.bincount(owner, weights=size, minlength=len(weights))
    if demand.sum() <= devices:
        return size
    got = fair_division(demand.astype(np.float64), weights, devices)
    before = np.cumsum(size) - size
    first = np.concatenate([[0.0], np.cumsum(demand)[:-1]])
    rates: Floats = np.clip(got[owner] - (before - first[owner]), 0.0, size)
    return rates


def fair_division(demand: Floats, weights: Floats, devices: float) -> Floats:
    """Divide devices max-min by weight: nobody gets more than it asks for."""
    order = np.argsort(demand / weights)
    asked, weight = demand[order], weights[order]
    met = np.concatenate([[0.0], np.cumsum(asked)[:-1]])
    open_weight = np.cumsum(weight[::-1])[::-1]
    level = (devices - met) / open_weight
    short = np.nonzero(level * weight < asked)[0]
    if not len(short):
        return demand
    divided: Floats = np.minimum(demand, weights * level[short[0]])
    return divided
