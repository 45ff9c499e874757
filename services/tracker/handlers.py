"""Steps into the time series, node-seconds into the costs, what looks wrong into alerts; sweeps follow their jobs."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, get_args

from schemas.base import FailureClass
from schemas.checkpoint import CheckpointOverdue
from schemas.cost import LimitSpending
from schemas.job import JobScheduled, JobStopping, JobSucceeded
from schemas.node import NodesProvisioned, NodesReleased, key_of_first
from schemas.topics import RUN_METRICS
from schemas.training import (
    AttemptMessage,
    CheckpointWritten,
    StepsRecorded,
    TrainingCompleted,
    TrainingFailed,
    TrainingStopped,
)
from services.tracker import gauges, mute_handlers, store, sweep_handlers
from services.tracker.decide import alerts, budget, cost
from services.tracker.decide.alerts import Seen, Watch
from services.tracker.decide.cost import AttemptEnded
from services.tracker.decide.mirror import ModelChange, SweepChange, Verdict
from services.tracker.decide.sweeps import JobNews
from services.tracker.mirror_handlers import Mirror
from shared.errors import Rejected
from shared.messaging.consumer import Handler
from shared.messaging.unit import Unit
from shared.service import Service
from shared.signatures import require_signature

MEASURE_EVERY = timedelta(seconds=5)
LOOK_EVERY = timedelta(seconds=5)
LOOKS_TOGETHER = 100
"""Attempts that are looked at in one transaction."""


async def steps_recorded(event: StepsRecorded, unit: Unit) -> None:
    """Save what node 0 claims: it counts for an attempt that has nodes, and for the tenant that the attempt is of."""
    tenant, public_key = await store.find_holder(unit.conn, event.job_id, event.attempt)
    await unit.keep_order(store.name_of(event.job_id, event.attempt))
    if event.tenant != tenant:
        raise Rejected(f"{event.job_id} is of tenant {tenant}, found {event.tenant}")
    require_signature(unit.record, public_key)
    await store.save_steps(unit.conn, event.job_id, event.tenant, event.attempt, event.steps)
    watch = await store.lock_watch(unit.conn, event.job_id, event.attempt, event.tenant)
    await _save(watch, alerts.on_steps(watch, event.steps, event.validations, now=unit.now), unit)


async def nodes_provisioned(event: NodesProvisioned, unit: Unit) -> None:
    began_at = min((node.allocated_at for node in event.nodes), default=unit.now)
    await store.save_held(
        unit.conn,
        event.job_id,
        event.attempt,
        event.tenant,
        pool=event.pool,
        capacity_type=event.capacity_type,
        began_at=began_at,
        public_key=key_of_first(event.nodes),
    )
    price = sum((node.price_per_hour for node in event.nodes), Decimal(0))
    await store.save_price(
        unit.conn, event.job_id, event.attempt, event.tenant, price_per_hour=price, began_at=began_at
    )
    await unit.release(store.name_of(event.job_id, event.attempt))


async def nodes_released(event: NodesReleased, unit: Unit) -> None:
    if not event.nodes:
        return  # an attempt that held nothing costs nothing
    seconds = cost.node_seconds(event.nodes, until=unit.now)
    total = cost.cost_of(event.nodes, until=unit.now)
    await store.save_cost(
        unit.conn,
        event,
        node_seconds=seconds,
        device_seconds=cost.device_seconds(event.nodes, until=unit.now),
        cost=total,
        until=unit.now,
    )
    await unit.release(store.name_of(event.job_id, event.attempt))
    await _emit_charge(event.job_id, event.attempt, unit)


async def attempt_ended(event: AttemptEnded, unit: Unit) -> None:
    """Save how an attempt ended by the first such fact: a job may be cancelled long after its last attempt."""
    if not event.attempt:
        return  # none has begun
    ending = cost.ending_of(event)
    if await store.save_ending(unit.conn, event.job_id, event.attempt, event.tenant, ending):
        await _emit_charge(event.job_id, event.attempt, unit)
    await _end_watch(event.job_id, event.attempt, event.tenant, unit)


async def job_news(event: AttemptEnded, unit: Unit) -> None:
    if isinstance(event, JobNews):
        await sweep_handlers.follow_job(event.job_id, event, unit)


async def _emit_charge(job_id: str, attempt: int, unit: Unit) -> None:
    """Emit the cost once the nodes are released and the ending is known, in either order."""
    if (fact := await store.find_charge(unit.conn, job_id, attempt)) is not None:
        await unit.emit(fact)


async def measure_running(unit: Unit) -> None:
    """Show the newest steps as the rows have them, so that every process of the tracker reports the same."""
    gauges.show(await store.list_newest_steps(unit.conn))


async def job_scheduled(event: JobScheduled, unit: Unit) -> None:
    await store.save_plan(unit.conn, event, alerts.plan_of(event.spec))


async def checkpoint_written(event: CheckpointWritten, unit: Unit) -> None:
    watch = await store.lock_watch(unit.conn, event.job_id, event.attempt, event.tenant)
    await _save(watch, alerts.on_checkpoint(watch, event.bundle.step, event.metrics), unit)
    await sweep_handlers.follow_job(event.job_id, event, unit)


async def checkpoint_overdue(event: CheckpointOverdue, unit: Unit) -> None:
    watch = await store.lock_watch(unit.conn, event.job_id, event.attempt, event.tenant)
    await _save(watch, alerts.on_checkpoint_overdue(watch, event.last_step, event.last_written_at), unit)


async def training_failed(event: TrainingFailed, unit: Unit) -> None:
    if event.failure_class is not FailureClass.NUMERIC:
        await training_over(event, unit)
        return
    watch = await store.lock_watch(unit.conn, event.job_id, event.attempt, event.tenant)
    await _save(watch, alerts.on_numeric_failure(watch, event.message), unit)


async def training_over(event: AttemptMessage | JobStopping, unit: Unit) -> None:
    await _end_watch(event.job_id, event.attempt, event.tenant, unit)


async def _end_watch(job_id: str, attempt: int, tenant: str, unit: Unit) -> None:
    watch = await store.lock_watch(unit.conn, job_id, attempt, tenant)
    await _save(watch, alerts.on_end(watch, f"attempt {attempt} ends"), unit)


async def _save(watch: Watch, seen: Seen, unit: Unit) -> None:
    """Save and emit what a message changed; most that come again change nothing."""
    if seen.watch != watch:
        await _save_seen(seen, unit)


async def _save_seen(seen: Seen, unit: Unit) -> None:
    seen = await mute_handlers.with_mutes(seen, unit)
    look_at = alerts.next_look(seen.watch, now=unit.now)
    await store.save_watch(unit.conn, seen.watch, look_at=look_at)
    await unit.emit(*seen.events)


async def look_at_attempts(unit: Unit, *, listening_since: datetime) -> bool:
    """Look at attempts that are due; return whether there may be more."""
    watches = await store.lock_due_watches(unit.conn, now=unit.now, at_most=LOOKS_TOGETHER)
    for watch in watches:
        spending = None
        if watch.plan.alerts.expected_cost is not None:
            spending = await store.find_spending(unit.conn, watch.job_id, watch.attempt)
        await _save_seen(alerts.look(watch, spending, now=unit.now, listening_since=listening_since), unit)
    return len(watches) == LOOKS_TOGETHER


async def look_at_budgets(unit: Unit) -> None:
    """End attempts that come to the budget of their job, or of their tenant's month."""
    burns = await store.list_burns(unit.conn)
    tenants = {each.tenant for each in burns}
    months = await store.list_months(unit.conn, tenants, since=budget.month_start(unit.now))
    for fact in budget.reached(burns, months, now=unit.now):
        if await store.mark_budget_reached(unit.conn, fact.job_id, fact.attempt):
            await unit.emit(fact)


async def limit_spending(command: LimitSpending, unit: Unit) -> None:
    await store.save_spending_limit(unit.conn, command.tenant, command.cost_per_month)


async def _look(service: Service) -> None:
    """Look at what is due once all that was written before is read: what is late may only be unread."""
    async with service.unit() as unit:
        if not await store.is_look_due(unit.conn, now=unit.now):
            return
    await service.caught_up(RUN_METRICS.name)
    more = True
    while more:
        async with service.unit() as unit:
            more = await look_at_attempts(unit, listening_since=service.listening_since())


def _in_turn(*handlers: Handler) -> Handler:
    """Return a handler that lets each of these handle the message."""

    async def handle(event: Any, unit: Unit) -> None:
        for handler in handlers:
            await handler(event, unit)

    return handle


def register(service: Service, mirror: Mirror) -> None:
    service.on(StepsRecorded, _in_turn(steps_recorded, mirror.queue))
    service.on(NodesProvisioned, nodes_provisioned)
    service.on(NodesReleased, nodes_released)
    for fact in get_args(AttemptEnded):
        service.on(fact, _in_turn(attempt_ended, job_news, mirror.queue))
    service.on(JobSucceeded, _in_turn(sweep_handlers.job_of_trial, mirror.queue))
    service.on(JobScheduled, _in_turn(job_scheduled, mirror.queue))
    service.on(CheckpointWritten, _in_turn(checkpoint_written, mirror.queue))
    for fact in (*get_args(Verdict), *get_args(ModelChange), *get_args(SweepChange)):
        service.on(fact, mirror.queue)
    service.on(CheckpointOverdue, checkpoint_overdue)
    service.on(TrainingFailed, training_failed)
    service.on(LimitSpending, limit_spending)
    for end in (JobStopping, TrainingStopped, TrainingCompleted):
        service.on(end, training_over)

    mute_handlers.register(service)
    sweep_handlers.register(service)
    mirror.register(service)

    async def measure() -> None:
        async with service.unit() as unit:
            await measure_running(unit)

    async def look() -> None:
        await _look(service)

    async def compare_with_budgets() -> None:
        async with service.unit() as unit:
            await look_at_budgets(unit)

    service.every(MEASURE_EVERY, measure)
    service.every(budget.LOOK_EVERY, compare_with_budgets)
    service.every(LOOK_EVERY, look)
