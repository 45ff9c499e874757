"""Sweeps: what is asked of them, what is heard of the jobs of their trials, and what follows."""

import asyncio
from datetime import timedelta

from schemas.base import CommandRefused
from schemas.job import JobEvaluating, JobQueued, JobSucceeded
from schemas.sweep import CancelSweep, SubmitSweep, SweepEnded, SweepState, TrialChosen
from schemas.topics import JOB_EVENTS
from services.tracker import sweep_store as store
from services.tracker.decide import search, sweeps
from services.tracker.decide.sweeps import Decision, JobNews, Sweep
from services.tracker.decide.trial import Trial
from shared.messaging.unit import Unit
from shared.service import Service

LOOK_EVERY = timedelta(seconds=5)
"""How often the budgets are compared with what runs."""


async def submit_sweep(command: SubmitSweep, unit: Unit) -> None:
    existing = await store.lock_sweep(unit.conn, command.sweep_id)
    decision = sweeps.submit(command, existing, now=unit.now)
    await store.add_sweep(unit.conn, decision.sweep, now=unit.now)
    await unit.emit(*decision.messages)
    await _advance(decision.sweep, [], unit)


async def cancel_sweep(command: CancelSweep, unit: Unit) -> None:
    sweep = await store.lock_sweep(unit.conn, command.sweep_id)
    trials = await store.list_trials(unit.conn, command.sweep_id)
    decision = sweeps.cancel(sweep, command.sweep_id, command.tenant, trials)
    await _save(decision, unit)
    await _advance(decision.sweep, trials, unit)


async def trial_refused(event: CommandRefused, unit: Unit) -> None:
    await follow_job(event.subject_id, event, unit)


async def job_of_trial(event: JobQueued | JobSucceeded, unit: Unit) -> None:
    await follow_job(event.job_id, event, unit)


async def follow_job(job_id: str, news: JobNews, unit: Unit) -> None:
    """Take in news of a job, where it is a trial, and do what follows for its sweep."""
    sweep_id = await store.find_sweep_of(unit.conn, job_id)
    if sweep_id is None or (sweep := await store.lock_sweep(unit.conn, sweep_id)) is None:
        return
    trials = await store.list_trials(unit.conn, sweep_id)
    before = next(each for each in trials if each.job_id == job_id)
    decision = sweeps.follow(sweep, before, news, trials)
    if isinstance(news, JobEvaluating):
        await store.save_artifact(unit.conn, news)
    if decision.trials != (before,):
        await _save(decision, unit)
        await _advance(sweep, _with(trials, decision), unit)


async def _advance(sweep: Sweep, trials: list[Trial], unit: Unit) -> None:
    """Begin the trials that may begin, stop at a limit, and end the sweep once all have ended."""
    spent = await store.find_spent(unit.conn, sweep.id, now=unit.now)
    if (stopped := sweeps.limit(sweep, trials, spent)) is not None:
        await _save(stopped, unit)
        sweep = stopped.sweep
    while (number := sweeps.next_number(sweep, trials)) is not None:
        history = sweep.history_of(number, trials)
        parameters = await asyncio.to_thread(search.choose, sweep.spec, number, history)
        begun = sweeps.begin(sweep, number, parameters, trials)
        await _save(begun, unit)
        trials = _with(trials, begun)
    if (ended := sweeps.conclude(sweep, trials, spent)) is not None:
        await _end(ended, unit)


async def _end(ended: Decision, unit: Unit) -> None:
    await _save(ended, unit)
    for fact in ended.messages:
        if isinstance(fact, SweepEnded) and fact.best is not None and fact.state is SweepState.SUCCEEDED:
            artifact = await store.get_artifact(unit.conn, fact.sweep_id, fact.best)
            await unit.emit(TrialChosen(**dict(artifact)))


async def _save(decision: Decision, unit: Unit) -> None:
    ended_at = unit.now if decision.sweep.state in sweeps.ENDED else None
    await store.save_sweep(unit.conn, decision.sweep, ended_at=ended_at)
    for trial in decision.trials:
        await store.save_trial(unit.conn, trial)
    await unit.emit(*decision.messages)


def _with(trials: list[Trial], decision: Decision) -> list[Trial]:
    changed = {each.number: each for each in (*trials, *decision.trials)}
    return [changed[number] for number in sorted(changed)]


async def look_at_budgets(service: Service) -> None:
    """Stop sweeps whose attempts have come to the budget while they run."""
    async with service.unit() as unit:
        limited = await store.list_limited_sweeps(unit.conn)
    for sweep_id in limited:
        async with service.unit() as unit:
            if (sweep := await store.lock_sweep(unit.conn, sweep_id)) is not None:
                await _advance(sweep, await store.list_trials(unit.conn, sweep_id), unit)


def register(service: Service) -> None:
    service.on(SubmitSweep, submit_sweep)
    service.on(CancelSweep, cancel_sweep)
    service.on(JobQueued, job_of_trial)
    service.on(CommandRefused, trial_refused, topic=JOB_EVENTS)

    async def look() -> None:
        await look_at_budgets(service)

    service.every(LOOK_EVERY, look)
