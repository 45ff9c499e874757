"""The loop: look at the replicas of each group, take the next steps, route what is loaded everywhere."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from services.serving_controller import store
from services.serving_controller.clients.vllm import NoAnswer
from services.serving_controller.decide import candidates, pools, slots
from services.serving_controller.decide.pools import Policy
from services.serving_controller.handlers.messages import apply
from services.serving_controller.handlers.steps import Outcome, Steps
from services.serving_controller.model import Failure, Group, Phase, Replica
from services.serving_controller.store import View
from shared.clock import utc_now
from shared.errors import StorageUnavailable
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.messaging.unit import Unit
from shared.postgres.database import is_unavailable
from shared.service import Service

log = get_logger(__name__)

PAUSE_SECONDS = 5.0
"""Before a group is looked at again whose round could not be ended."""


class Rounds:
    """Groups go at their own pace: a slow start or fetch of one does not hold up the others."""

    def __init__(self, service: Service, steps: Steps, *, policy: Policy, unanswered: timedelta) -> None:
        self._service = service
        self._steps = steps
        self._policy = policy
        self._unanswered_seconds = unanswered.total_seconds()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._paused_until: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        """When each incarnation answered last."""

    async def start(self) -> None:
        """End what was started but not written down by a controller that died in between."""
        async with self._service.unit() as unit:
            view = await store.load_view(unit.conn)
        known = {replica.replica_id for replica in view.replicas if replica.phase is not Phase.LOST}
        await self._steps.end_unknown(known)

    async def look(self) -> None:
        """Begin a round of every group that has none under way."""
        async with self._service.unit() as unit:
            view = await store.load_view(unit.conn)
            await store.forget_retired(unit.conn, now=unit.now)
            await store.forget_candidates(unit.conn, now=unit.now)
            now = unit.now
        wanted = pools.wanted_groups(
            view.slots,
            view.retired,
            view.base_models,
            candidates=view.candidates,
            now=now,
            policy=self._policy,
        )
        for name in wanted.keys() | {replica.group for replica in view.replicas}:
            if name not in self._running and self._paused_until.get(name, 0.0) <= time.monotonic():
                self._begin(wanted.get(name) or _nothing(name, view), view)

    async def stop(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _begin(self, group: Group, view: View) -> None:
        replicas = tuple(replica for replica in view.replicas if replica.group == group.name)
        task = asyncio.create_task(self._guarded(group, replicas), name=group.name)
        self._running[group.name] = task
        task.add_done_callback(lambda _: self._running.pop(group.name, None))

    async def _guarded(self, group: Group, replicas: tuple[Replica, ...]) -> None:
        try:
            await self.round(group, replicas)
        except Exception as error:
            if isinstance(error, StorageUnavailable | NoAnswer) or is_unavailable(error):
                text = f"{type(error).__name__}: {error}"
                log.warning("round is tried again", group=group.name, error=text)
            else:
                log.exception("round failed", group=group.name)
            self._paused_until[group.name] = time.monotonic() + PAUSE_SECONDS

    async def round(self, group: Group, replicas: tuple[Replica, ...]) -> None:
        seen = {replica.replica_id: await self._look_at(replica) for replica in replicas}
        failures: dict[str, Failure] = {}
        actions = pools.plan(group, list(seen.values()), now=utc_now(), policy=self._policy)
        for action in actions:
            outcome = await self._steps.take(action, group, seen)
            await self._keep(outcome)
            failures |= outcome.failures
            if outcome.forgotten:
                del seen[outcome.replica.replica_id]
            else:
                seen[outcome.replica.replica_id] = outcome.replica
        if actions:
            failpoint("serving.load.all")
        await self._settle(group, seen, failures)

    async def _look_at(self, replica: Replica) -> Replica:
        seen = await self._steps.look_at(replica)
        incarnation = replica.address.incarnation
        if seen.answers:
            self._heard[incarnation] = time.monotonic()
        elif seen.is_alive and replica.phase is Phase.READY:
            # A busy replica may be late with one answer; the first silence is counted from now.
            since = self._heard.setdefault(incarnation, time.monotonic())
            return replace(seen, answers=time.monotonic() - since < self._unanswered_seconds)
        return seen

    async def _keep(self, outcome: Outcome) -> None:
        async with self._service.unit() as unit:
            if outcome.forgotten:
                await store.forget_replica(unit.conn, outcome.replica.replica_id)
            else:
                await store.save_replica(unit.conn, outcome.replica)
            await unit.emit(*outcome.events)

    async def _settle(
        self, group: Group, seen: Mapping[str, Replica], failures: Mapping[str, Failure]
    ) -> None:
        found = pools.found(group, list(seen.values()), failures, policy=self._policy)
        has_switched = False
        async with self._service.unit() as unit:
            for slot in await store.slots_of_group(unit.conn, group.name):
                decision = slots.settle(slot, found, now=unit.now, keep=self._policy.keep)
                if decision.slot != slot:
                    has_switched = True
                    await apply(unit, decision)
            for served_name, seen_then in group.candidates.items():
                await self._reconcile_candidate(unit, group, seen, failures, seen_then.eval_id, served_name)
        if has_switched:
            failpoint("serving.route.switched")

    async def _reconcile_candidate(
        self,
        unit: Unit,
        group: Group,
        seen: Mapping[str, Replica],
        failures: Mapping[str, Failure],
        eval_id: str,
        served_name: str,
    ) -> None:
        """As it is known now: it may have been given back, or asked for again, while the round was under way."""
        candidate = await store.find_candidate(unit.conn, eval_id)
        if candidate is None or candidate.servable.served_name != served_name:
            return
        decision = candidates.reconcile(
            candidate, group, list(seen.values()), failures, slots=self._policy.adapter_slots
        )
        if decision.candidate is None:
            await store.forget_candidate(unit.conn, eval_id)
        else:
            await store.save_candidate(unit.conn, decision.candidate)
        await unit.emit(*decision.events)


def _nothing(name: str, view: View) -> Group:
    """A group that is not wanted any more, as its replicas know it."""
    base_sha = next(replica.base_sha for replica in view.replicas if replica.group == name)
    return Group(name, base_sha)
