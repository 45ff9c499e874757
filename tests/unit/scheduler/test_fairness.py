"""By outcome: who starts when, over hours of a cluster that has less than all want. Time goes by in minutes."""

import heapq
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import mean

import pytest

from schemas.specification import Resources, Tier
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.ledger import Booking, Ledger
from services.scheduler.decide.queue import Round
from tests.builders import NOON, a_booking, a_ledger, a_pool

HOUR = 60
POOL = "cpu-spot"


@dataclass(frozen=True)
class Wish:
    tenant: str
    at: int
    minutes: int
    nodes: int = 1
    tier: Tier = Tier.STANDARD
    states: int | None = None
    """Minutes that it says it runs at most."""
    pool: str | None = None


@dataclass
class Outcome:
    started_at: dict[int, int] = field(default_factory=dict)
    """By place in the list of wishes."""
    idle: int = 0
    """Nodes times minutes, while somebody waited."""
    busy: int = 0

    @property
    def utilisation(self) -> float:
        return self.busy / (self.busy + self.idle)


@dataclass
class Cluster:
    """As the scheduler reads its queue: the oldest of each kind, and the one behind it once that has its nodes."""

    nodes: Mapping[str, int]
    """Pool -> its nodes, with one device each, of a type that no other pool has."""
    held: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Tenant -> pool -> nodes."""
    bookings: dict[str, dict[str, Booking]] = field(default_factory=lambda: defaultdict(dict))
    """Pool -> job -> its nodes."""
    queues: dict[object, deque[Candidate]] = field(default_factory=lambda: defaultdict(deque))

    @property
    def ledger(self) -> Ledger:
        pools = [
            a_pool(
                name,
                nodes=nodes,
                device_memory_bytes=number,
                bookings=tuple(self.bookings[name].values()),
            )
            for number, (name, nodes) in enumerate(self.nodes.items())
        ]
        return a_ledger(*pools, **self.held)

    @property
    def booked(self) -> int:
        return sum(map(self._booked_in, self.nodes))

    @property
    def free(self) -> int:
        return sum(self.nodes.values()) - self.booked

    def _booked_in(self, pool: str) -> int:
        return sum(len(booking.machines) for booking in self.bookings[pool].values())

    def add(self, number: int, wish: Wish) -> None:
        candidate = Candidate(
            job_id=f"{number:06}",
            tenant=wish.tenant,
            tier=wish.tier,
            queued_at=NOON + timedelta(minutes=wish.at),
            resources=Resources(nodes=wish.nodes, pool=wish.pool),
            longest=None if wish.states is None else timedelta(minutes=wish.states),
        )
        self.queues[self.kind(candidate)].append(candidate)

    @staticmethod
    def kind(candidate: Candidate) -> object:
        """As the scheduler's table has it: run times within a factor of two are alike."""
        longest = candidate.longest and math.ceil(math.log2(candidate.longest.total_seconds()))
        return candidate.tenant, candidate.resources, longest

    def start(self, minute: int) -> Iterable[Candidate]:
        heads = [queue[0] for queue in self.queues.values() if queue]
        now = NOON + timedelta(minutes=minute)
        grants = Round(heads, self.ledger, now=now)
        while self.free and (grant := grants.next()):
            candidate, pool, machines = grant.candidate, grant.placement.pool, grant.placement.machines
            queue = self.queues[self.kind(candidate)]
            queue.popleft()
            if queue:
                grants.add(queue[0])
            self.held[candidate.tenant][pool] += len(machines)
            ends_by = candidate.ends_by(now)
            self.bookings[pool][candidate.job_id] = a_booking(*machines, since=now, ends_by=ends_by)
            yield candidate

    def end(self, candidate: Candidate) -> None:
        [pool] = (name for name, bookings in self.bookings.items() if candidate.job_id in bookings)
        del self.bookings[pool][candidate.job_id]
        self.held[candidate.tenant][pool] -= candidate.resources.nodes

    @property
    def is_waited_for(self) -> bool:
        return any(self.queues.values())


def run(wishes: list[Wish], *, nodes: int | Mapping[str, int]) -> Outcome:
    """Until the last has started."""
    cluster, outcome = Cluster(nodes if isinstance(nodes, Mapping) else {POOL: nodes}), Outcome()
    coming = deque(sorted(range(len(wishes)), key=lambda number: wishes[number].at))
    ends: list[tuple[int, str, Candidate]] = []
    minute = 0
    while coming or cluster.is_waited_for:
        while ends and ends[0][0] <= minute:
            cluster.end(heapq.heappop(ends)[2])
        while coming and wishes[coming[0]].at <= minute:
            number = coming.popleft()
            cluster.add(number, wishes[number])
        for candidate in cluster.start(minute):
            number = int(candidate.job_id)
            outcome.started_at[number] = minute
            heapq.heappush(ends, (minute + wishes[number].minutes, candidate.job_id, candidate))
        if cluster.is_waited_for:
            outcome.busy += cluster.booked
            outcome.idle += cluster.free
        minute += 1
        assert minute < 1_000 * HOUR, "somebody waits for ever"
    return outcome


@pytest.mark.parametrize("arrives", [5, 15, 25, 59])
@pytest.mark.parametrize("queued", [50, 200, 1_000])
def test_a_tenants_first_job_starts_at_the_next_free_node_whatever_another_has_queued(queued, arrives):
    greedy = [Wish("greedy", 0, HOUR) for _ in range(queued)]
    outcome = run([*greedy, Wish("other", arrives, HOUR)], nodes=4)
    assert outcome.started_at[queued] == HOUR


def test_two_tenants_share_what_both_want_whoever_came_first():
    wishes = [Wish("first", 0, 10) for _ in range(400)] + [Wish("second", 30, 10) for _ in range(200)]
    outcome = run(wishes, nodes=20)
    both = [outcome.started_at[number] for number in range(400, 600)]
    assert sum(40 <= outcome.started_at[number] <= max(both) for number in range(400)) == pytest.approx(
        200, abs=20
    )


def test_a_premium_tenant_gets_two_thirds_beside_a_standard_one():
    wishes = [Wish("standard", 0, 10) for _ in range(300)]
    wishes += [Wish("premium", 0, 10, tier=Tier.PREMIUM) for _ in range(300)]
    outcome = run(wishes, nodes=30)
    of_premium = sum(outcome.started_at[number] < 2 * HOUR for number in range(300, 600))
    assert of_premium / sum(at < 2 * HOUR for at in outcome.started_at.values()) == pytest.approx(
        2 / 3, abs=0.02
    )


LARGE, SMALL = "large-spot", "small-spot"
TWO_TYPES = {LARGE: 20, SMALL: 4}


def who_wants_both(*, of_small: int, premium: bool = False) -> tuple[list[Wish], range]:
    """`both` has so much of the small pool for a day, and then wants as much of the large one as `modest` does."""
    tier = Tier.PREMIUM if premium else Tier.STANDARD
    wishes = [Wish("both", 0, 24 * HOUR, pool=SMALL, tier=tier) for _ in range(of_small)]
    wishes += [Wish("both", 0, 10, pool=LARGE, tier=tier) for _ in range(200)]
    modest = range(len(wishes), len(wishes) + 200)
    return wishes + [Wish("modest", 1, 10, pool=LARGE) for _ in modest], modest


def part_of_both(outcome: Outcome, modest: range) -> float:
    """Of the large pool, while both want it: from the first that `modest` gets until it wants no more."""
    first, last = (choose(outcome.started_at[number] for number in modest) for choose in (min, max))
    started = [number for number, at in outcome.started_at.items() if first <= at < last]
    return sum(number not in modest for number in started) / len(started)


def test_who_has_all_of_a_small_type_does_not_stand_before_one_that_has_little_of_everything():
    wishes, modest = who_wants_both(of_small=4)
    assert part_of_both(run(wishes, nodes=TWO_TYPES), modest) == 0.0


def test_what_a_tenant_has_of_two_types_is_not_added_up():
    wishes, modest = who_wants_both(of_small=2)
    assert part_of_both(run(wishes, nodes=TWO_TYPES), modest) == pytest.approx(1 / 2, abs=0.02)


def test_a_premium_tenant_may_have_twice_the_dominant_share():
    wishes, modest = who_wants_both(of_small=4, premium=True)
    assert part_of_both(run(wishes, nodes=TWO_TYPES), modest) == pytest.approx(1 / 2, abs=0.02)


def test_who_has_all_of_a_small_type_gets_what_nobody_else_wants_of_others():
    wishes = [Wish("both", 0, HOUR, pool=SMALL) for _ in range(4)]
    wishes += [Wish("both", 0, HOUR, pool=LARGE) for _ in range(20)]
    assert set(run(wishes, nodes=TWO_TYPES).started_at.values()) == {0}


def test_a_gang_beside_many_small_jobs_of_others_gets_its_nodes():
    small = [Wish(f"t{number % 20}", number // 4, 30) for number in range(2_000)]
    outcome = run([*small, Wish("gang", 100, HOUR, nodes=30)], nodes=60)
    assert outcome.started_at[len(small)] - 100 < HOUR


def a_day_with_gangs(*, stated: float | None) -> list[Wish]:
    """Small jobs without end for 60 nodes, and every two hours one that wants 40 of them.

    stated: by how much more they say they run than they do; None: they say nothing.
    """
    chance = random.Random(11)

    def wish(tenant: str, at: int, minutes: int, nodes: int) -> Wish:
        return Wish(tenant, at, minutes, nodes, states=stated and math.ceil(stated * minutes))

    wishes = [
        wish(f"t{number % 12}", number // 2, chance.randint(10, 120), chance.choice((1, 1, 1, 2)))
        for number in range(1_800)
    ]
    return wishes + [wish(f"gang-{number}", 120 * number + 60, HOUR, 40) for number in range(12)]


@pytest.mark.parametrize("stated", [1.0, 1.5])
def test_gangs_wait_for_a_bounded_time_and_leave_no_node_idle_where_jobs_state_how_long_they_run(
    stated, record_property
):
    wishes = a_day_with_gangs(stated=stated)
    outcome = run(wishes, nodes=60)
    waits = [outcome.started_at[number] - wishes[number].at for number in range(1_800, 1_812)]
    record_property("gangs wait, minutes", waits)
    record_property("utilisation while somebody waits", round(outcome.utilisation, 4))
    assert max(waits) <= 20 + stated * 120
    assert outcome.utilisation >= 0.95


def test_where_nobody_states_it_gangs_share_the_idle_time_that_they_need(record_property):
    wishes = a_day_with_gangs(stated=None)
    outcome = run(wishes, nodes=60)
    waits = [outcome.started_at[number] - wishes[number].at for number in range(1_800, 1_812)]
    record_property("gangs wait, minutes", waits)
    record_property("utilisation while somebody waits", round(outcome.utilisation, 4))
    assert max(waits) <= 4 * 120
    assert outcome.utilisation >= 0.95


@pytest.mark.parametrize("states", [None, 20])
def test_a_gang_keeps_no_idle_pool_behind_a_job_of_a_day_that_states_nothing(states):
    long, minutes = Wish("long", 0, 24 * HOUR), 25 * HOUR
    small = [Wish(f"t{number % 20}", 2 + number // 3, 10, states=states) for number in range(3 * minutes)]
    outcome = run([long, Wish("gang", 1, HOUR, nodes=30), *small], nodes=30)
    assert outcome.utilisation >= 0.95
    assert 24 * HOUR <= outcome.started_at[1] <= 24 * HOUR + 20


def endless(
    comes_until: int, minutes: tuple[int, ...], *, states: int | None, own: str, num_others: int
) -> list[Wish]:
    """A third more than ten nodes can do; every third job is of the tenant `own`."""
    chance, count = random.Random(5), int(1.3 * 10 * comes_until / mean(minutes))
    return [
        Wish(
            own if number % 3 == 0 else f"t{number % num_others}",
            1 + number * comes_until // count,
            chance.choice(minutes),
            states=states if number % 2 else None,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("minutes", "states"),
    [((60,), None), ((5, 10, 20, 300), None), ((30, 60), 90)],
    ids=["alike", "far apart", "half of them stated"],
)
@pytest.mark.parametrize("nodes", [6, 10])
@pytest.mark.parametrize(("own", "num_others"), [("other", 7), ("gang", 7), ("gang", 100)])
def test_no_job_waits_for_ever_whoever_comes_after_it(own, num_others, minutes, states, nodes):
    bound = 4 * max(minutes) + (states or 0)
    others = endless(2 * bound, minutes, states=states, own=own, num_others=num_others)
    outcome = run([Wish("gang", 0, HOUR, nodes=nodes), *others], nodes=10)
    assert outcome.started_at[0] <= bound
    assert max(outcome.started_at.values()) > 2 * bound, "others wanted nodes all the time"


@pytest.mark.parametrize(("num_gangs", "first_jobs_wait"), [(0, HOUR), (3, 3 * HOUR)])
def test_five_hundred_tenants_and_a_greedy_one(num_gangs, first_jobs_wait, record_property):
    chance = random.Random(7)
    wishes = [Wish("greedy", 0, chance.randint(20, 180)) for _ in range(1_000)]
    firsts: dict[str, int] = {}
    for number in range(500):
        tenant, at = f"t{number}", chance.randint(0, 24 * HOUR)
        firsts[tenant] = len(wishes)
        wishes += [
            Wish(
                tenant,
                at + chance.randint(0, HOUR) * later,
                chance.randint(20, 180),
                chance.choice((1, 1, 1, 2, 4)),
            )
            for later in range(chance.randint(1, 6))
        ]
    gangs = range(len(wishes), len(wishes) + num_gangs)
    wishes += [Wish(f"gang-{each}", 6 * HOUR * each + 60, 2 * HOUR, 64) for each in range(num_gangs)]
    outcome = run(wishes, nodes=250)
    assert len(outcome.started_at) == len(wishes)
    gangs_wait = [outcome.started_at[number] - wishes[number].at for number in gangs]
    record_property("gangs wait, minutes", gangs_wait)
    assert max(gangs_wait, default=0) <= 4 * 180
    waits = sorted(outcome.started_at[number] - wishes[number].at for number in firsts.values())
    record_property("first jobs of tenants wait, minutes at p50, p99", (waits[250], waits[495]))
    record_property("utilisation while somebody waits", round(outcome.utilisation, 4))
    assert outcome.utilisation >= 0.95
    assert waits[-1] <= first_jobs_wait
