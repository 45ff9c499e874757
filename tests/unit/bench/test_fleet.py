"""The simulated fleet: no device is booked twice, no job is lost, and policies differ where they should."""

import random
from collections import Counter

import numpy as np
import pytest

from bench.fleet.incidents import REPAIR_SECONDS, Incident, IncidentKind, incidents
from bench.fleet.main import a_week, compared
from bench.fleet.measures import jain
from bench.fleet.oracle import STEP, fair_division, fair_fleet, most_work, usable
from bench.fleet.picture import picture
from bench.fleet.policies import Fifo, Ours, Quotas
from bench.fleet.simulation import CHECKPOINT_EVERY, NOTICED, START, TICK, TRAINED, Simulation
from bench.fleet.workload import (
    DAY,
    DEVICES_OF_MACHINE,
    LARGE,
    STEADY,
    PoolSize,
    SimulatedJob,
    Sizing,
    jobs,
)
from schemas.base import DeviceKind
from schemas.specification import Resources, Tier

HOUR = 3600.0
TINY = Sizing("tiny", (PoolSize("steady", "H100", STEADY, 4, "2.00"),), jobs_a_week=0, tenants=2)
POLICIES = {
    "ours": lambda drawn: Ours(),
    "fifo": lambda drawn: Fifo(),
    "quotas": lambda drawn: Quotas({job.tenant: job.tier for job in drawn}),
}


def a_job(number, *, at=0.0, seconds=HOUR, nodes=1, devices=1, tenant="a", tier=Tier.STANDARD, stated=None):
    resources = Resources(
        nodes=nodes,
        devices_per_node=devices,
        device=DeviceKind.CUDA,
        capacity_type="on-demand",
        max_run_seconds=stated,
    )
    return SimulatedJob(number, tenant, tier, at, resources, seconds)


def simulated(drawn, *, struck=(), policy="ours", hours=24.0, sizing=TINY):
    return Simulation(sizing, drawn, struck, POLICIES[policy](drawn), hours * HOUR).run()


def starts(simulation):
    return {run.job.number: run.first_start for run in simulation.runs.values()}


class Watched:
    """A policy, and a look at each ledger that it is asked with."""

    def __init__(self, policy, look):
        self._policy, self._look = policy, look

    def __getattr__(self, name):
        return getattr(self._policy, name)

    def starts(self, ledger, now):
        self._look(ledger)
        return self._policy.starts(ledger, now)


class TestConservation:
    SMALL = Sizing(
        "small",
        (
            PoolSize("steady", "H100", STEADY, 6, "2.99"),
            PoolSize("spot", "A100", LARGE.pools[2].capacity_type, 4, "1.07"),
        ),
        jobs_a_week=900,
        tenants=6,
        largest=32,
    )

    @pytest.mark.parametrize("policy", POLICIES)
    def test_no_device_is_booked_twice_and_no_job_is_lost_or_doubled(self, policy):
        drawn = jobs(self.SMALL, days=2, seed=3)
        simulation = Simulation(
            self.SMALL, drawn, incidents(self.SMALL, days=20, seed=3), POLICIES[policy](drawn), 2 * DAY
        )
        looks = []

        def look(ledger):
            for pool in ledger.pools:
                held = Counter()
                for booking in pool.bookings:
                    held.update(dict.fromkeys(booking.machines, booking.devices))
                assert max(held.values(), default=0) <= DEVICES_OF_MACHINE
                assert pool.free_devices <= pool.devices - sum(
                    devices for machine, devices in held.items() if machine not in pool.drained
                )
            booked = {job_id for each in simulation.bookings.values() for job_id in each}
            looks.append(len(booked))
            running = {run.job.id for run in simulation.runs.values() if run.placement is not None}
            assert booked == running
            assert sum(map(Counter.total, simulation.held.values())) == sum(
                run.held for run in simulation.runs.values()
            )

        simulation.policy = Watched(simulation.policy, look)
        simulation.run()
        assert len(looks) > 100
        assert [*simulation.runs] == [job.id for job in drawn]
        for run in simulation.runs.values():
            is_done = run.trained == pytest.approx(run.job.seconds)
            assert is_done if run.ended_at is not None else run.trained <= run.job.seconds
        useful = sum(run.trained * run.job.devices for run in simulation.runs.values())
        assert simulation.spent.useful == pytest.approx(useful)

    def test_what_is_drawn_and_decided_follows_from_the_seed(self):
        week, again = (a_week(self.SMALL, seed=5, days=1) for _ in range(2))
        assert week.jobs == again.jobs != a_week(self.SMALL, seed=6, days=1).jobs
        one, other = (compared(each)[0]["ours"] for each in (week, again))
        assert {**one, "cpu_seconds": 0} == {**other, "cpu_seconds": 0}

    def test_no_policy_exceeds_the_bound(self):
        results, samples = compared(a_week(self.SMALL, seed=5, days=2))
        assert all(0 < each["goodput_of_bound"] <= 1 for each in results.values())
        assert picture("a picture", samples, devices=80).count("<polyline") == 2 * (5 + len(samples))


class TestPolicies:
    GANG = (a_job(0, nodes=3, devices=8), a_job(1, at=60, nodes=4, devices=8), a_job(2, at=120, seconds=600))

    def test_behind_a_gang_nobody_starts_first_come_first_served(self):
        assert starts(simulated(self.GANG, policy="fifo"))[2] > HOUR

    @pytest.mark.parametrize("policy", ["ours", "quotas"])
    def test_others_pass_a_gang_that_has_just_come(self, policy):
        assert starts(simulated(self.GANG, policy=policy))[2] == pytest.approx(120, abs=TICK)

    def test_small_jobs_without_end_pass_a_gang_for_ever_by_quotas_and_not_by_ours(self):
        small = [a_job(n, at=120.0 + 600 * n, seconds=1500, devices=8) for n in range(100)]
        drawn = [a_job(999, at=100.0, nodes=4, devices=8, tenant="b")]
        drawn = [a_job(998, seconds=1800, devices=8), *drawn, *small]
        assert starts(simulated(drawn, policy="quotas", hours=16))[999] is None
        assert starts(simulated(drawn, policy="ours", hours=16))[999] is not None

    @pytest.mark.parametrize(("policy", "is_fair"), [("ours", True), ("quotas", True), ("fifo", False)])
    def test_a_tenant_that_has_nothing_does_not_wait_for_all_of_another(self, policy, is_fair):
        much = [a_job(n, devices=8, seconds=2 * HOUR) for n in range(12)]
        drawn = [*much, a_job(99, at=1800, devices=8, tenant="b")]
        started = starts(simulated(drawn, policy=policy))
        assert (started[99] < max(started[n] for n in range(12))) is is_fair

    def test_who_states_the_run_time_passes_a_gang_that_reserves(self):
        waiting = [a_job(0, nodes=3, devices=8, stated=HOUR), a_job(1, at=60, nodes=4, devices=8)]
        after = 1800.0  # the gang reserves from 20 minutes on
        drawn = [
            *waiting,
            a_job(2, at=after, seconds=600, stated=900),
            a_job(3, at=after, seconds=3000, stated=7200),
        ]
        started = starts(simulated(drawn, policy="ours"))
        assert started[2] == pytest.approx(after, abs=TICK)
        assert started[3] > HOUR


class TestIncidents:
    def struck(self, kind, *, at=1230.0, until=1230.0):
        return [Incident(at, "steady", 0, kind, until)]

    def test_without_notice_what_was_trained_since_the_last_checkpoint_is_lost(self):
        simulation = simulated([a_job(0)], struck=self.struck(IncidentKind.INTERRUPTED))
        [run] = simulation.runs.values()
        trained = (1230 - TICK - START) * TRAINED
        lost = trained % CHECKPOINT_EVERY
        assert run.attempt == 2
        assert simulation.spent.lost == pytest.approx(lost + NOTICED, abs=1)
        done = 1230 + NOTICED + START + (HOUR - trained + lost) / TRAINED
        assert run.ended_at == pytest.approx(done, abs=2 * TICK)

    def test_with_notice_nothing_is_lost(self):
        struck = self.struck(IncidentKind.RECLAIMED, until=5 * HOUR)
        simulation = simulated([a_job(0)], struck=struck)
        [run] = simulation.runs.values()
        assert (run.attempt, run.trained) == (2, pytest.approx(HOUR))
        assert simulation.spent.lost == pytest.approx(0, abs=1)

    def test_a_broken_machine_is_cordoned_after_failures_of_two_jobs_and_comes_back_repaired(self):
        whole = [a_job(n, devices=8, seconds=4 * HOUR) for n in range(4)]
        later = [a_job(4 + n, at=1250, devices=8, tenant="b") for n in range(2)]
        struck = self.struck(IncidentKind.BROKEN, until=1230 + REPAIR_SECONDS)
        simulation = simulated([*whole, *later], struck=struck, hours=40)
        assert simulation.interruptions["cordoned"] == 1
        assert simulation.interruptions[IncidentKind.BROKEN] == 3
        assert all(run.ended_at is not None for run in simulation.runs.values())
        assert simulation.capacities["steady"].nodes == 4

    def test_they_are_as_often_as_published(self):
        of_hardware = [
            each for each in incidents(LARGE, days=54, seed=1) if each.kind is not IncidentKind.RECLAIMED
        ]
        assert len(of_hardware) == pytest.approx(419 * LARGE.devices / 16_384, rel=0.15)


class TestWorkload:
    def test_sizes_and_run_times_have_the_published_figures(self):
        drawn = jobs(LARGE, days=7, seed=4)
        seconds = sorted(job.seconds for job in drawn)
        assert len(drawn) == pytest.approx(100_000, rel=0.02)
        assert seconds[len(seconds) // 2] == pytest.approx(874, rel=0.1)
        assert np.mean(seconds) == pytest.approx(18_006, rel=0.1)
        assert sum(job.seconds * job.devices for job in drawn) / 3600 / len(drawn) == pytest.approx(
            37.5, rel=0.15
        )


class TestOracle:
    def test_devices_are_divided_by_weight_and_nobody_gets_more_than_it_asks_for(self):
        divided = fair_division(np.array([2.0, 50.0, 90.0]), np.array([1.0, 1.0, 2.0]), 62.0)
        assert divided.tolist() == [2.0, 20.0, 40.0]

    def test_the_bound_is_what_is_asked_or_what_there_is(self):
        capacity = usable(TINY, [], 10 * HOUR)
        asked = [a_job(0, seconds=2 * HOUR, devices=8)]
        assert most_work(asked, capacity, 10 * HOUR) == pytest.approx(16 * HOUR)
        too_much = [a_job(n, at=5 * HOUR, seconds=9 * HOUR, nodes=4, devices=8) for n in range(3)]
        assert most_work(asked + too_much, capacity, 10 * HOUR) == pytest.approx((16 + 5 * 32) * HOUR)

    def test_of_two_tenants_who_both_want_all_each_has_half(self):
        drawn = [a_job(n, nodes=4, devices=8, tenant=name) for n, name in enumerate("ab")]
        fair = fair_fleet(drawn, usable(TINY, [], 10 * HOUR), 10 * HOUR)
        assert [*fair.waits.values()] == pytest.approx([HOUR, HOUR], abs=STEP)
        assert fair.useful == pytest.approx(64 * HOUR)

    def test_a_tenants_own_jobs_wait_for_each_other(self):
        draw = random.Random(1)
        drawn = [a_job(n, at=float(n), nodes=4, devices=8, seconds=draw.uniform(600, 900)) for n in range(3)]
        fair = fair_fleet(drawn, usable(TINY, [], 10 * HOUR), 10 * HOUR)
        first, second, third = fair.waits.values()
        assert first == pytest.approx(0, abs=STEP)
        assert (second, third) == (
            pytest.approx(drawn[0].seconds, abs=2 * STEP),
            pytest.approx(drawn[0].seconds + drawn[1].seconds, abs=2 * STEP),
        )


def test_jains_index():
    assert (jain([1, 1, 1]), jain([1, 0, 0, 0])) == (1, 0.25)
