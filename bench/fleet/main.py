"""A week of 24,000 GPUs, and one of 240: our policy, two others, and what none can beat.

The fleet is empty at first: utilisation and waits count from the third day on, work from the first.

    python -m bench.fleet.main [--seed 1] [--small-seeds 10] [--only small]
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import report
from bench.fleet import measures
from bench.fleet.incidents import Incident, incidents
from bench.fleet.oracle import FairFleet, fair_fleet, most_work, usable
from bench.fleet.picture import picture
from bench.fleet.policies import Fifo, Ours, Quotas
from bench.fleet.simulation import Policy, Sample, Simulation
from bench.fleet.workload import DAY, LARGE, SMALL, SimulatedJob, Sizing, jobs

DAYS = 7.0
WARM_UP_DAYS = 2.0
PICTURE = Path(__file__).parents[2] / "docs" / "proof" / "fleet.svg"


@dataclass(frozen=True)
class Week:
    """All that the policies of one comparison meet."""

    sizing: Sizing
    jobs: Sequence[SimulatedJob]
    incidents: Sequence[Incident]
    fair: FairFleet
    bound: float
    days: float

    @property
    def end(self) -> float:
        return self.days * DAY


Named = Callable[[Week], Simulation]


def a_week(sizing: Sizing, *, seed: int, days: float = DAYS) -> Week:
    drawn = jobs(sizing, days=days, seed=seed)
    struck = incidents(sizing, days=days, seed=seed)
    capacity = usable(sizing, struck, days * DAY)
    bound = most_work(drawn, capacity, days * DAY)
    return Week(sizing, drawn, struck, fair_fleet(drawn, capacity, days * DAY), bound, days)


def under(policy: Policy, week: Week) -> Simulation:
    return Simulation(week.sizing, week.jobs, week.incidents, policy, week.end).run()


def ours(week: Week) -> Simulation:
    return under(Ours(), week)


def fifo(week: Week) -> Simulation:
    return under(Fifo(), week)


def quotas(week: Week) -> Simulation:
    return under(Quotas({job.tenant: job.tier for job in week.jobs}), week)


def foreseeing(week: Week) -> Simulation:
    """Ours, where every job states its run time to the second and nothing breaks or is taken back."""
    stated = [
        replace(job, resources=job.resources.model_copy(update={"max_run_seconds": job.seconds + 61}))
        for job in week.jobs
    ]
    return Simulation(week.sizing, stated, [], Ours(), week.end).run()


POLICIES: Mapping[str, Named] = {
    "ours": ours,
    "FIFO": fifo,
    "quotas": quotas,
    "ours, all foreseen": foreseeing,
}


Results = dict[str, Any]
Samples = dict[str, list[Sample]]


def compared(week: Week) -> tuple[Results, Samples]:
    """Return the measures of each policy and its samples."""
    *_, last = one_by_one(week)
    return last


def one_by_one(week: Week) -> Iterator[tuple[Results, Samples]]:
    """Yield what is known after each policy: of a large fleet it takes a minute or more."""
    since = WARM_UP_DAYS / DAYS * week.end
    results, samples = Results(), Samples()
    for name, run in POLICIES.items():
        began = time.process_time()
        simulation = run(week)
        results[name] = measures.measured(simulation, week.fair, week.bound, since=since)
        results[name]["cpu_seconds"] = time.process_time() - began
        samples[name] = simulation.samples
        report.progress(
            f"{week.sizing.name}, {name}: {results[name]['goodput_of_bound']:.4f} of the bound,"
            f" {results[name]['cpu_seconds']:.0f} s"
        )
        runs = [*simulation.runs.values()]
        results["fair fleet"] = measures.of_fair_fleet(runs, week.fair, week.bound, since=since)
        yield results, samples


def of_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the medians over seeds, least and greatest, of the numbers that are shown of a small fleet."""
    return {
        policy: {name: report.summary([take(run[policy]) for run in runs]) for name, take in SHOWN.items()}
        for policy in POLICIES
    }


SHOWN: Mapping[str, Callable[[Any], float]] = {
    "goodput_of_bound": lambda measure: measure["goodput_of_bound"],
    "utilisation": lambda measure: measure["utilisation"],
    "wait_minutes_p50": lambda measure: measure["wait_minutes"]["p50"],
    "wait_minutes_p90": lambda measure: measure["wait_minutes"]["p90"],
    "wait_minutes_p99": lambda measure: measure["wait_minutes"]["p99"],
    "tenants_beyond": lambda measure: measure["tenants"]["beyond_twice_the_fair_p99"],
    "tenants_beyond_by_jobs_of_one_machine": lambda measure: measure["tenants_by_jobs_of_one_machine"][
        "beyond_twice_the_fair_p99"
    ],
    "fairness": lambda measure: measure["fairness"],
    "lost_gpu_hours": lambda measure: measure["gpu_hours"]["lost"],
    "dollars_per_useful_gpu_hour": lambda measure: measure["dollars_per_useful_gpu_hour"],
}


def settings(week: Week, seeds: Sequence[int]) -> dict[str, Any]:
    asked = sum(job.seconds * job.devices for job in week.jobs) / 3600
    return {
        "devices": week.sizing.devices,
        "tenants": week.sizing.tenants,
        "jobs_a_week": week.sizing.jobs_a_week,
        "days": week.days,
        "warm_up_days": WARM_UP_DAYS,
        "seeds": seeds,
        "jobs": len(week.jobs),
        "gpu_hours_a_job": asked / len(week.jobs),
        "jobs_at_once": sum(job.seconds for job in week.jobs) / week.end,
        "asked_of_capacity": asked / (week.sizing.devices * week.days * 24),
        "incidents": len(week.incidents),
    }


def main(seed: int, small_seeds: int, only: str | None) -> None:
    if only != "large":
        seeds = range(seed, seed + small_seeds)
        weeks = [a_week(SMALL, seed=each) for each in seeds]
        results = of_seeds([compared(week)[0] for week in weeks])
        report.write("fleet-240", results, packages=("numpy",), settings=settings(weeks[0], [*seeds]))
    if only != "small":
        week = a_week(LARGE, seed=seed)
        for results, samples in one_by_one(week):
            PICTURE.write_text(picture("A week of 24,000 GPUs", samples, devices=LARGE.devices))
            report.write("fleet-24000", results, packages=("numpy",), settings=settings(week, [seed]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--small-seeds", type=int, default=10)
    parser.add_argument("--only", choices=("small", "large"))
    arguments = parser.parse_args()
    main(arguments.seed, arguments.small_seeds, arguments.only)
