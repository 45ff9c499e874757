"""The tracker on real Kafka and Postgres: each step once over all attempts, and money to the millionth."""

from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import uuid4

import asyncpg
import httpx
import pytest

from deploy.local.stack import Stack
from schemas.base import CapacityType, FailureClass
from schemas.cost import LimitSpending
from schemas.job import JobCancelled, JobFailed, JobPaused, JobRequeued, JobScheduled, PauseReason
from schemas.node import AllocatedNode, NodesProvisioned, NodesReleased
from schemas.specification import JobSpec
from schemas.training import StepMetrics, StepsRecorded
from shared.clock import utc_now
from tests.builders import a_dataset, a_job_spec, a_sha
from tests.integration.tracker_world import db, tracker, voice
from tests.integration.voices import Ear, Voices, ear
from tests.waiting import until

__all__ = ["db", "tracker", "voice"]

pytestmark = pytest.mark.stack

TENANT = "demo"
NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
async def heard(tracker: Stack) -> AsyncIterator[Ear]:
    async with ear(tracker, "cost.events") as heard:
        yield heard


@pytest.fixture
def job_id() -> str:
    return f"ftjob-{uuid4().hex[:8]}"


@pytest.fixture
async def run(voice: Voices, db: asyncpg.Connection, job_id: str) -> str:
    """A job whose attempts 1 and 2 had nodes."""
    for attempt in (1, 2):
        await voice.say("provisioner", held(job_id, attempt, CapacityType.SPOT, a_node(0, "1", seconds=1)))

    async def are_known() -> bool:
        return await db.fetchval("SELECT count(*) = 2 FROM tracker.cost WHERE job_id = $1", job_id)

    await until(are_known, "the attempts known")
    return job_id


def recorded(job_id: str, attempt: int, steps: Iterable[int]) -> StepsRecorded:
    """The loss tells who recorded the step: 2.03 is step 3 of attempt 2."""
    rows = [
        StepMetrics(
            step=step,
            time=NOON + timedelta(seconds=step),
            loss=attempt + step / 100,
            learning_rate=2e-4,
            grad_norm=1.0,
            num_tokens=512,
            tokens_per_second=800.0,
            memory_bytes=1024,
            epoch=step / 10,
            reward_margin=attempt / 4,
            device_utilization=attempt / 8,
            router_loss=2.0 + attempt,
        )
        for step in steps
    ]
    return StepsRecorded(job_id=job_id, tenant=TENANT, attempt=attempt, steps=tuple(rows))


async def until_applied(db: asyncpg.Connection, event_id: str) -> None:
    async def applied() -> bool:
        return await db.fetchval("SELECT true FROM tracker.inbox WHERE event_id = $1", event_id)

    await until(applied, "the last batch applied")


async def series(db: asyncpg.Connection, job_id: str) -> list[tuple[int, int, float]]:
    rows = await db.fetch(
        "SELECT step, attempt, loss FROM tracker.step WHERE job_id = $1 ORDER BY step", job_id
    )
    return [(row["step"], row["attempt"], row["loss"]) for row in rows]


class TestSteps:
    async def test_a_batch_that_comes_again_is_stored_once(self, voice: Voices, db, run: str):
        batch = recorded(run, 1, range(1, 6))
        event_id = await voice.say("runner", batch)
        await voice.say("runner", batch, event_id=event_id)
        # The same steps under another id, as a runner sends them whose first try was not acknowledged.
        await until_applied(db, await voice.say("runner", batch))
        assert await series(db, run) == [(step, 1, 1 + step / 100) for step in range(1, 6)]

    async def test_batches_that_overlap_leave_no_step_twice(self, voice: Voices, db, run: str):
        batches = [recorded(run, 1, steps) for steps in (range(1, 5), range(3, 8), range(2, 4))]
        await until_applied(db, await voice.say("runner", *batches))
        assert [step for step, _, _ in await series(db, run)] == list(range(1, 8))

    @pytest.mark.parametrize("order", [1, -1], ids=["in order", "the old attempt's batch last"])
    async def test_what_a_resume_did_again_is_that_of_the_later_attempt(
        self, voice: Voices, db, run: str, order: int
    ):
        """Attempt 1 was lost after step 8; its last checkpoint was step 5, from which attempt 2 continued."""
        batches = [recorded(run, 1, range(1, 9)), recorded(run, 2, range(6, 11))]
        await until_applied(db, await voice.say("runner", *batches[::order]))
        first = [(step, 1, 1 + step / 100) for step in range(1, 6)]
        second = [(step, 2, 2 + step / 100) for step in range(6, 11)]
        assert await series(db, run) == first + second
        numbers = await db.fetch(
            "SELECT reward_margin, device_utilization, router_loss, reward_accuracy FROM tracker.step"
            " WHERE job_id = $1",
            run,
        )
        assert sorted({tuple(row) for row in numbers}) == [(0.25, 0.125, 3.0, None), (0.5, 0.25, 4.0, None)]

    async def test_of_an_attempt_without_nodes_do_not_count(self, voice: Voices, db, run: str):
        """Any runner's login can write them; of a higher attempt they would stay for good."""
        forged = await voice.say("runner", recorded(run, 10**9, range(1, 4)))
        await until_applied(db, await voice.say("runner", recorded(run, 1, range(1, 4))))
        assert await series(db, run) == [(step, 1, 1 + step / 100) for step in range(1, 4)]
        parent = await db.fetchval("SELECT parent FROM tracker.waiting WHERE event_id = $1", forged)
        assert parent == f"attempt:{run}/1000000000"

    async def test_for_another_tenant_are_parked(self, voice: Voices, db, run: str):
        forged = recorded(run, 1, range(1, 4)).model_copy(update={"tenant": "other"})
        event_id = await voice.say("runner", forged)

        async def is_parked() -> bool:
            return await db.fetchval("SELECT true FROM tracker.parked WHERE event_id = $1", event_id)

        await until(is_parked, "the batch parked")
        assert await series(db, run) == []


async def test_gauges_have_the_newest_step_until_the_attempt_ends(tracker: Stack, voice: Voices, run: str):
    async def measured(number: str) -> float | None:
        async with httpx.AsyncClient() as http:
            text = (await http.get(tracker.url("tracker", "/metrics"))).text
        label = f'training_{number}{{job_id="{run}",tenant="{TENANT}"}} '
        return next((float(line[len(label) :]) for line in text.splitlines() if line.startswith(label)), None)

    async def until_measured(number: str, value: float | None) -> None:
        async def is_so() -> bool:
            return await measured(number) == value

        await until(is_so, f"{number} {value}")

    await voice.say("runner", recorded(run, 1, range(1, 9)))
    await voice.say("scheduler", requeued(run, 1, FailureClass.INFRA))
    # Behind the steps of the attempt that was lost.
    await voice.say("runner", recorded(run, 2, range(6, 8)))
    await until_measured("step", 7)
    assert (await measured("loss"), await measured("device_utilization")) == (2.07, 0.25)
    assert await measured("mfu") is None
    await voice.say("scheduler", cancelled(run, 2))
    await until_measured("step", None)


def a_node(index: int, price: str, *, seconds: float) -> AllocatedNode:
    return AllocatedNode(
        node_id=f"n-{index}",
        index=index,
        price_per_hour=Decimal(price),
        allocated_at=NOON,
        released_at=NOON + timedelta(seconds=seconds),
    )


def held(job_id: str, attempt: int, capacity_type: CapacityType, *nodes: AllocatedNode) -> NodesProvisioned:
    started = tuple(node.model_copy(update={"released_at": None}) for node in nodes)
    return NodesProvisioned(
        job_id=job_id, tenant=TENANT, attempt=attempt, pool="cpu", capacity_type=capacity_type, nodes=started
    )


def released(job_id: str, attempt: int, *nodes: AllocatedNode) -> NodesReleased:
    return NodesReleased(job_id=job_id, tenant=TENANT, attempt=attempt, nodes=nodes)


def scheduled(job_id: str, attempt: int, spec: JobSpec) -> JobScheduled:
    return JobScheduled(
        **of(job_id),
        attempt=attempt,
        spec=spec,
        base_sha=spec.base_sha,
        dataset=a_dataset().ref,
        config_hash=a_sha("config"),
        resume=None,
        pool="cpu",
        capacity_type=CapacityType.SPOT,
        nodes=1,
        devices_per_node=1,
        grace_seconds=30,
        start_deadline=NOON,
    )


def of(job_id: str) -> dict[str, str]:
    return {"job_id": job_id, "tenant": TENANT}


def requeued(job_id: str, attempt: int, failure_class: FailureClass) -> JobRequeued:
    return JobRequeued(
        **of(job_id), attempt=attempt, failure_class=failure_class, resume=None, not_before=NOON, message=""
    )


def paused(job_id: str, attempt: int) -> JobPaused:
    return JobPaused(**of(job_id), attempt=attempt, reason=PauseReason.USER, resume=None)


def failed(job_id: str, attempt: int, failure_class: FailureClass) -> JobFailed:
    return JobFailed(**of(job_id), attempt=attempt, failure_class=failure_class, code="x", message="")


def cancelled(job_id: str, attempt: int) -> JobCancelled:
    return JobCancelled(**of(job_id), attempt=attempt, reason="user", artifact=None)


class TestCost:
    SPOT = (a_node(0, "0.10", seconds=1800), a_node(1, "0.10", seconds=900))
    ON_DEMAND = (a_node(0, "0.30", seconds=3600),)

    async def test_the_total_grows_by_each_attempt_and_no_fact_counts_twice(
        self, voice: Voices, heard: Ear, db, job_id: str
    ):
        await voice.say("provisioner", held(job_id, 1, CapacityType.SPOT, *self.SPOT))
        end = released(job_id, 1, *self.SPOT)
        event_id = await voice.say("provisioner", end)
        await voice.say("provisioner", end, event_id=event_id)
        await voice.say("provisioner", held(job_id, 2, CapacityType.ON_DEMAND, *self.ON_DEMAND))
        await voice.say("provisioner", released(job_id, 2, *self.ON_DEMAND))
        await voice.say("scheduler", paused(job_id, 1), paused(job_id, 2))
        await heard.until(job_id, "CostAccrued", "CostAccrued")
        facts = [each.message for each in heard.heard[job_id]]
        assert [(fact.attempt, fact.capacity_type, fact.node_seconds) for fact in facts] == [
            (1, CapacityType.SPOT, 2700.0),
            (2, CapacityType.ON_DEMAND, 3600.0),
        ]
        assert [(fact.cost, fact.total) for fact in facts] == [
            (Decimal("0.075000"), Decimal("0.075000")),
            (Decimal("0.300000"), Decimal("0.375000")),
        ]
        stored = await db.fetchval("SELECT sum(cost) FROM tracker.cost WHERE job_id = $1", job_id)
        assert stored == Decimal("0.375000")

    async def test_an_attempt_that_held_nothing_costs_nothing(
        self, voice: Voices, heard: Ear, db, job_id: str
    ):
        await voice.say("provisioner", released(job_id, 1))
        await voice.say("provisioner", held(job_id, 2, CapacityType.SPOT, *self.SPOT))
        await voice.say("provisioner", released(job_id, 2, *self.SPOT))
        await voice.say("scheduler", requeued(job_id, 1, FailureClass.INFRA), cancelled(job_id, 2))
        fact = await heard.until(job_id, "CostAccrued")
        assert (fact.attempt, fact.total) == (2, Decimal("0.075000"))

    @pytest.mark.parametrize("first", ["nodes", "ending"])
    async def test_the_tenant_pays_nothing_for_a_node_that_was_taken_back(
        self, voice: Voices, heard: Ear, job_id: str, first: str
    ):
        """Whichever is heard first; and what ends the job later changes nothing about the attempt."""
        provisioner = [held(job_id, 1, CapacityType.SPOT, *self.SPOT), released(job_id, 1, *self.SPOT)]
        ending = requeued(job_id, 1, FailureClass.PREEMPTED)
        if first == "nodes":
            await voice.say("provisioner", *provisioner)
            await voice.say("scheduler", ending)
        else:
            await voice.say("scheduler", ending)
            await voice.say("provisioner", *provisioner)
        await heard.until(job_id, "CostAccrued")
        await voice.say("scheduler", cancelled(job_id, 1))
        await voice.say("provisioner", held(job_id, 2, CapacityType.ON_DEMAND, *self.ON_DEMAND))
        await voice.say("scheduler", failed(job_id, 2, FailureClass.USER))
        await voice.say("provisioner", released(job_id, 2, *self.ON_DEMAND))
        await heard.until(job_id, "CostAccrued", "CostAccrued")
        facts = [each.message for each in heard.heard[job_id]]
        assert [(fact.attempt, fact.charged, fact.failure_class) for fact in facts] == [
            (1, Decimal(0), FailureClass.PREEMPTED),
            (2, Decimal("0.300000"), FailureClass.USER),
        ]
        assert [(fact.cost, fact.total, fact.charged_total) for fact in facts] == [
            (Decimal("0.075000"), Decimal("0.075000"), Decimal(0)),
            (Decimal("0.300000"), Decimal("0.375000"), Decimal("0.300000")),
        ]
        assert {fact.capacity_type for fact in facts} == {CapacityType.SPOT, CapacityType.ON_DEMAND}


class TestBudget:
    async def test_only_what_is_charged_counts(self, voice: Voices, heard: Ear, job_id: str):
        """Of 0.80 dollars 0.60 were for an attempt that was taken back, 0.30 for one that was paused, and 0.50 run."""
        spec = a_job_spec(max_cost="0.80")
        for attempt, cents in ((1, "0.60"), (2, "0.30")):
            node = a_node(0, cents, seconds=3600)
            await voice.say("scheduler", scheduled(job_id, attempt, spec))
            await voice.say("provisioner", held(job_id, attempt, CapacityType.SPOT, node))
            await voice.say("provisioner", released(job_id, attempt, node))
        await voice.say("scheduler", requeued(job_id, 1, FailureClass.PREEMPTED), paused(job_id, 2))
        await heard.until(job_id, "CostAccrued", "CostAccrued")
        await voice.say("scheduler", scheduled(job_id, 3, spec))
        began_at = utc_now() - timedelta(minutes=30)
        node = a_node(0, "1.00", seconds=0).model_copy(update={"allocated_at": began_at})
        await voice.say("provisioner", held(job_id, 3, CapacityType.SPOT, node))
        fact = await heard.until_any(job_id, "BudgetReached")
        assert (fact.attempt, fact.limit) == (3, Decimal("0.80"))
        assert Decimal("0.80") <= fact.spent < Decimal("0.90")

    async def test_what_runs_ends_at_the_budget_of_its_tenants_month(
        self, voice: Voices, heard: Ear, db, job_id: str
    ):
        tenant = f"t-{job_id}"
        await voice.say("gateway", LimitSpending(tenant=tenant, cost_per_month=1))

        async def is_known() -> bool:
            return await db.fetchval("SELECT true FROM tracker.spending_limit WHERE tenant = $1", tenant)

        await until(is_known, "the limit")
        began_at = utc_now() - timedelta(hours=1)
        node = a_node(0, "0.70", seconds=0).model_copy(update={"allocated_at": began_at})
        for job in (job_id, f"{job_id}-2"):
            for each in (scheduled(job, 1, a_job_spec()), held(job, 1, CapacityType.SPOT, node)):
                writer = "scheduler" if each.type == "JobScheduled" else "provisioner"
                await voice.say(writer, each.model_copy(update={"tenant": tenant}))
        facts = [await heard.until_any(job, "BudgetReached") for job in (job_id, f"{job_id}-2")]
        assert {(fact.budget, fact.limit) for fact in facts} == {("month", Decimal("1.00"))}
        await voice.say("gateway", LimitSpending(tenant=tenant, cost_per_month=None))
