"""Kueue's workload under the scheduler's decisions: each job starts once it is there, and no device is booked twice."""

from collections import Counter, defaultdict

import pytest

from bench.queues.decisions import Replay
from bench.queues.workload import (
    CLASSES,
    COHORTS,
    DEVICES_OF_MACHINE,
    MACHINES,
    QUEUES,
    least_seconds,
    pools,
    workloads,
)
from schemas.placement import taken
from services.scheduler.decide.ledger import pool_of
from tests.builders import NOON


def test_it_is_as_large_as_kueues():
    everyone = workloads()
    assert len({each.job_id for each in everyone}) == len(everyone) == 15_000
    assert Counter(each.kind.name for each in everyone) == {"small": 10_500, "medium": 3_000, "large": 1_500}
    assert least_seconds() == pytest.approx(66.0)


def test_each_class_takes_as_many_devices_of_a_pool_as_it_asks_cores_of_kueue():
    pool = pool_of(pools()[0], now=NOON)
    assert [taken(each.resources, pool) for each in CLASSES] == [1, 5, 20]
    assert pool.devices == 6 * 20


def test_each_starts_when_it_is_there_and_no_pool_is_overbooked():
    everyone = workloads(share=0.04)
    replay = Replay(everyone).run()
    assert replay.started.keys() == {each.job_id for each in everyone}
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for each in everyone:
        started = replay.started[each.job_id]
        assert started >= each.created_at
        changes[each.pool] += [
            (started, each.kind.devices),
            (started + each.kind.seconds, -each.kind.devices),
        ]
    assert len(changes) == COHORTS
    assert len({each.tenant for each in everyone}) == COHORTS * QUEUES
    for of_pool in changes.values():
        held = 0
        for _, devices in sorted(of_pool):
            held += devices
            assert held <= MACHINES * DEVICES_OF_MACHINE
    assert least_seconds(share=0.04) <= replay.ended_at < 2 * least_seconds(share=0.04)
