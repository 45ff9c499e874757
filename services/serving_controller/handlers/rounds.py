"""The loop: look at the replicas of each replica set, take the next steps, route what is loaded everywhere."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from services.serving_controller import store
from services.serving_controller.clients.vllm import NoAnswer
from services.serving_controller.decide import candidates, loads, pools, scaling, slots
from services.serving_controller.decide.loads import Refusals
from services.serving_controller.decide.pools import Action, Policy
from services.serving_controller.decide.scaling import Scale
from services.serving_controller.decide.slots import Served
from services.serving_controller.handlers.messages import apply
from services.serving_controller.handlers.steps import Outcome, Steps
from services.serving_controller.model import Failure, Phase, Replica, ReplicaSet, ReplicaSetServables
from services.serving_controller.store import View
from shared.device_leases.holder import DeviceLeases
from shared.device_leases.lease import HeldLease
from shared.errors import StorageUnavailable
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.messaging.lease import LeaseLost
from shared.messaging.unit import Unit
from shared.postgres.database import is_unavailable
from shared.service import Service

log = get_logger(__name__)

PAUSE_SECONDS = 5.0
"""Pause before a replica set is looked at again whose round could not be ended."""
FULL_LOOK_SECONDS = 10.0
"""Time between two looks at all that a replica has loaded, where nothing was to be done at the last one."""
ROUND_SECONDS = 5.0
"""Time after which a round takes no further step: what was asked for meanwhile goes before what is left."""


@dataclass(frozen=True)
class Quiet:
    """A replica set that had all that it shall have."""

    replica_set: ReplicaSet
    replicas: tuple[Replica, ...]
    until: float


class ReconcileLoop:
    """Rounds of replica sets, each at its own pace: a slow start or fetch of one does not hold up the others."""

    def __init__(
        self,
        service: Service,
        steps: Steps,
        *,
        policy: Policy,
        unanswered: timedelta,
        leases: DeviceLeases | None = None,
    ) -> None:
        self._service = service
        self._steps = steps
        self._policy = policy
        self.leases = leases
        """Leases of the replicas' devices; None where they take what this machine has."""
        self._extended: dict[str, HeldLease] = {}
        """Leases as their replicas know them, by replica."""
        self._unanswered_seconds = unanswered.total_seconds()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._paused_until: dict[str, float] = {}
        self._refusals: dict[str, Refusals] = {}
        """Refusals by replica set."""
        self._heard: dict[str, float] = {}
        """When each incarnation answered last."""
        self._replica_versions: Mapping[str, int] = {}
        self._replicas: tuple[Replica, ...] = ()
        self._servables: dict[str, tuple[int, ReplicaSetServables]] = {}
        """What each replica set shall serve, with its version."""
        self._routed: dict[str, dict[str, Served]] = {}
        """What slots were last routed by, by replica set and served name."""
        self._resident: dict[str, frozenset[str]] = {}
        """Served names that each replica set may route, where slots of others are known to be idle."""
        self._put_off: dict[str, float] = {}
        """When a load failed for want of storage, by served name: others go before it."""
        self._quiet: dict[str, Quiet] = {}
        self._scales: dict[str, Scale] = {}
        """How many replicas each replica set shall have."""

    @property
    def is_scaling(self) -> bool:
        return self._policy.max_replicas_per_pool > self._policy.replicas_per_pool

    async def start(self) -> None:
        """End what was started but not written down by a controller that died in between.

        What this process knew when it led before is old.
        """
        self._replica_versions, self._replicas = {}, ()
        known_before = (
            self._servables,
            self._routed,
            self._resident,
            self._quiet,
            self._refusals,
            self._scales,
        )
        for each in known_before:
            each.clear()
        self._extended.clear()
        async with self._service.unit() as unit:
            replicas = await store.replicas(unit.conn)
        known = {replica.replica_id for replica in replicas if replica.phase is not Phase.LOST}
        await self._steps.end_unknown(known)

    async def look(self) -> None:
        """Begin a round of every replica set that has none under way, unless it has all that it shall have."""
        under_way = set(self._running)  # what is read here of one that ends meanwhile is old
        async with self._service.unit() as unit:
            view = await store.load_view(unit.conn)
            if any(retired.keep_until <= unit.now for retired in view.retired):
                await store.forget_retired(unit.conn, now=unit.now)
            if any(candidate.until <= unit.now for candidate in view.candidates):
                await store.forget_candidates(unit.conn, now=unit.now)
            await self._read_replicas(unit, view)
            await self._read_servables(unit, view)
            leases = await self.leases.list(unit.conn) if self.leases else None
            now = unit.now
        await self._extend_replicas(leases or {})
        replica_sets = pools.desired_replica_sets(
            {name: of_set for name, (_, of_set) in self._servables.items()},
            view.retired,
            view.base_models,
            adapter_layers=view.adapter_layers,
            candidates=view.candidates,
            now=now,
            policy=self._policy,
        )
        replica_sets = {name: self._scaled(each) for name, each in replica_sets.items()}
        self._scales = {name: scale for name, scale in self._scales.items() if name in replica_sets}
        leased = {_replica_set_of(replica_id) for replica_id in leases or ()}
        for name in replica_sets.keys() | {replica.replica_set for replica in self._replicas} | leased:
            if name in under_way or self._paused_until.get(name, 0.0) > time.monotonic():
                continue
            replicas = self._replicas_of(name)
            # It shall serve nothing any more: as its replicas know it.
            base_sha = replicas[0].base_sha if replicas else ""
            replica_set = _with_leases(replica_sets.get(name) or ReplicaSet(name, base_sha), leases)
            if not await self._is_quiet(replica_set, replicas):
                self._begin(replica_set, replicas)

    def _replicas_of(self, name: str) -> tuple[Replica, ...]:
        return tuple(replica for replica in self._replicas if replica.replica_set == name)

    def _scaled(self, replica_set: ReplicaSet) -> ReplicaSet:
        if replica_set.name not in self._scales:
            replicas = self._replicas_of(replica_set.name)
            self._scales[replica_set.name] = scaling.first_scale(replicas, self._policy)
        return replace(replica_set, num_replicas=self._scales[replica_set.name].num_replicas)

    async def scale(self) -> None:
        """Judge by what replicas have to answer how many there shall be at the next look."""
        for name, before in tuple(self._scales.items()):
            replicas = self._replicas_of(name)
            ready = [replica for replica in replicas if replica.phase is Phase.READY]
            answers = await asyncio.gather(*map(self._steps.requests, ready))
            requests = {
                replica.replica_id: answer
                for replica, answer in zip(ready, answers, strict=True)
                if answer is not None
            }
            scale = scaling.next_scale(
                before, replicas, requests, now=self._service.clock(), policy=self._policy
            )
            if scale.num_replicas != before.num_replicas:
                log.info("replicas are scaled", replica_set=name, replicas=scale.num_replicas)
            if name in self._scales:
                self._scales[name] = scale

    async def extend_leases(self) -> None:
        assert self.leases is not None, "it is called where replicas lease devices"
        async with self._service.unit() as unit:
            await self.leases.extend_all(unit)

    async def _extend_replicas(self, leases: Mapping[str, HeldLease]) -> None:
        """Let replicas run for as long as the provisioner has confirmed."""
        for replica in self._replicas:
            lease = leases.get(replica.replica_id)
            if lease and replica.phase is not Phase.LOST and self._extended.get(lease.subject) != lease:
                await self._steps.extend(lease)
                self._extended[lease.subject] = lease
        self._extended = {each: lease for each, lease in self._extended.items() if each in leases}

    async def tidy(self) -> None:
        """Delete the files of models that nobody serves any more, and forget what was noted of what is gone."""
        async with self._service.unit() as unit:
            view = await store.load_view(unit.conn)
            await self._read_replicas(unit, view)
            await self._read_servables(unit, view)
        servables = [
            *(servable for _, of_set in self._servables.values() for servable in of_set.servables.values()),
            *(retired.servable for retired in view.retired),
        ]
        bases = {*view.base_models.values(), *(replica.base_sha for replica in self._replicas)}
        bases |= {servable.base_sha for servable in servables}
        self._forget_all_but({servable.served_name for servable in servables})
        await self._steps.keep_files(bases=bases, models={servable.digest for servable in servables})

    def _forget_all_but(self, names: set[str]) -> None:
        """Names, incarnations and replica sets come and go, as long as this process leads."""
        incarnations = {replica.address.incarnation for replica in self._replicas}
        replica_sets = (
            self._servables.keys()
            | self._running.keys()
            | {replica.replica_set for replica in self._replicas}
        )
        self._heard = {each: since for each, since in self._heard.items() if each in incarnations}
        self._put_off = {each: since for each, since in self._put_off.items() if each in names}
        self._refusals = {each: refusals for each, refusals in self._refusals.items() if each in replica_sets}
        self._quiet = {each: quiet for each, quiet in self._quiet.items() if each in replica_sets}
        self._steps.forget_all_but(names)

    async def _read_replicas(self, unit: Unit, view: View) -> None:
        if self._replica_versions != view.replica_versions:
            self._replica_versions, self._replicas = view.replica_versions, await store.replicas(unit.conn)

    async def _read_servables(self, unit: Unit, view: View) -> None:
        """Read what replica sets shall serve, only where it changed."""
        known = {name: version for name, (version, _) in self._servables.items()}
        for name, version in view.versions.items() - known.items():
            if of_set := await store.servables_of_replica_set(unit.conn, name):
                at_most = self._policy.resident_adapters
                self._servables[name] = (version, pools.resident(of_set, at_most=at_most))
        for gone in self._servables.keys() - view.versions.keys():
            del self._servables[gone]
            self._routed.pop(gone, None)
            self._resident.pop(gone, None)

    async def _is_quiet(self, replica_set: ReplicaSet, replicas: tuple[Replica, ...]) -> bool:
        last = self._quiet.get(replica_set.name)
        if last is None or last.until <= time.monotonic():
            return False
        if (last.replica_set, last.replicas) != (replica_set, replicas):
            return False
        return all([await self._steps.is_running(replica) for replica in replicas])

    async def stop(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _begin(self, replica_set: ReplicaSet, replicas: tuple[Replica, ...]) -> None:
        self._quiet.pop(replica_set.name, None)
        task = asyncio.create_task(self._guarded(replica_set, replicas), name=replica_set.name)
        self._running[replica_set.name] = task
        task.add_done_callback(lambda _: self._running.pop(replica_set.name, None))

    async def _guarded(self, replica_set: ReplicaSet, replicas: tuple[Replica, ...]) -> None:
        try:
            await self.round(replica_set, replicas)
        except Exception as error:
            if isinstance(error, StorageUnavailable | NoAnswer | LeaseLost) or is_unavailable(error):
                text = f"{type(error).__name__}: {error}"
                log.warning("round is tried again", replica_set=replica_set.name, error=text)
            else:
                log.exception("round failed", replica_set=replica_set.name)
            self._pause(replica_set.name, now=time.monotonic())

    def _pause(self, name: str, *, now: float) -> None:
        """Pauses that are over are forgotten: replica set after replica set comes and goes."""
        going_on = {each: until for each, until in self._paused_until.items() if until > now}
        self._paused_until = going_on | {name: now + PAUSE_SECONDS}

    async def round(self, replica_set: ReplicaSet, replicas: tuple[Replica, ...]) -> None:
        if await self._set_idle(replica_set):
            return  # that they stay loaded for a while is known to the next look
        seen = {replica.replica_id: await self._inspect(replica) for replica in replicas}
        actions = self._plan(replica_set, seen)
        failures = dict[str, Failure]()
        unavailable = await self._act(replica_set, seen, failures, sorted(actions, key=self._put_off_at))
        await self._route(replica_set, seen, failures, pools.names_of(replica_set))
        self._forget_names(replica_set)
        await self._reconcile_candidates(replica_set, seen, failures)
        if unavailable:
            raise unavailable
        is_well = all(replica.phase is Phase.READY and replica.answers for replica in seen.values())
        # With a slot that waits the same replica set may come again, for another slot.
        is_done = not actions and not replica_set.pending and not self._refusals[replica_set.name]
        if is_done and is_well:
            self._quiet[replica_set.name] = Quiet(replica_set, replicas, time.monotonic() + FULL_LOOK_SECONDS)

    async def _set_idle(self, replica_set: ReplicaSet) -> bool:
        """Whether requests still went to versions that the replica set does not serve any more."""
        names = frozenset(pools.names_of(replica_set))
        if replica_set.full or self._resident.get(replica_set.name) == names:
            return False
        self._forget_names(replica_set)
        async with self._service.unit() as unit:
            slots_beyond = await store.slots_beyond(unit.conn, replica_set.name, names)
            for slot in slots_beyond:
                await apply(unit, slots.set_idle(slot, now=unit.now, keep=self._policy.keep))
        self._resident[replica_set.name] = names
        return bool(slots_beyond)

    def _put_off_at(self, action: Action) -> float:
        return self._put_off.get(action.servable.served_name, 0.0) if isinstance(action, pools.Load) else 0.0

    async def _act(
        self,
        replica_set: ReplicaSet,
        seen: dict[str, Replica],
        failures: dict[str, Failure],
        actions: Iterable[Action],
    ) -> StorageUnavailable | None:
        """Take the steps, route after each what it has changed; return the error of a load that waits for storage."""
        unavailable, until = None, time.monotonic() + ROUND_SECONDS
        for action in actions:
            try:
                await self._execute(action, replica_set, seen, failures)
            except StorageUnavailable as error:
                if not isinstance(action, pools.Load):
                    raise
                self._put_off[action.servable.served_name] = time.monotonic()
                unavailable = error
            if time.monotonic() > until:
                break
        return unavailable

    async def _execute(
        self, action: Action, replica_set: ReplicaSet, seen: dict[str, Replica], failures: dict[str, Failure]
    ) -> None:
        if isinstance(action, pools.AskDevices | pools.AwaitDevices | pools.GiveBackDevices):
            await self._lease(action)
            return
        outcome = await self._steps.execute(action, replica_set, seen)
        if outcome is None:
            return
        await self._keep(outcome)
        failures |= self._judge(replica_set, outcome)
        if outcome.forgotten:
            del seen[outcome.replica.replica_id]
            self._heard.pop(outcome.replica.address.incarnation, None)
        else:
            seen[outcome.replica.replica_id] = outcome.replica
        if isinstance(action, pools.Load):
            failpoint("serving.load.kept")
            self._put_off.pop(action.servable.served_name, None)
            await self._route(
                replica_set, seen, failures, set(pools.names_of(replica_set)) & {action.servable.served_name}
            )

    def _plan(self, replica_set: ReplicaSet, seen: Mapping[str, Replica]) -> Sequence[Action]:
        """Return the next steps, or the end of replicas that will not take what others serve."""
        now, replicas = self._service.clock(), list(seen.values())
        refusals = loads.still_open(self._refusals.get(replica_set.name, {}), replicas)
        self._refusals[replica_set.name] = refusals
        if ends := loads.ends(refusals, replicas, now=now, policy=self._policy):
            return ends
        actions = pools.plan(replica_set, replicas, now=now, policy=self._policy)
        return [action for action in actions if loads.is_due(action, seen, refusals, now=now)]

    def _judge(self, replica_set: ReplicaSet, outcome: Outcome) -> Mapping[str, Failure]:
        self._refusals[replica_set.name], failures = loads.after(
            self._refusals[replica_set.name],
            outcome.replica,
            outcome.failures,
            now=self._service.clock(),
            policy=self._policy,
        )
        return failures

    async def _inspect(self, replica: Replica) -> Replica:
        seen = await self._steps.inspect(replica)
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
            if outcome.times:
                await store.save_load_times(unit.conn, outcome.times)
            await unit.emit(*outcome.events)
            if self.leases and (outcome.forgotten or outcome.replica.phase is Phase.LOST):
                await self.leases.give_back(unit, outcome.replica.replica_id)

    async def _lease(self, action: pools.AskDevices | pools.AwaitDevices | pools.GiveBackDevices) -> None:
        """Ask for devices, or give those back that no replica has. What is awaited comes as a message."""
        if self.leases is None or isinstance(action, pools.AwaitDevices):
            return
        async with self._service.unit() as unit:
            if isinstance(action, pools.AskDevices):
                await self.leases.ask(unit, action.replica_id)
            else:
                await self.leases.give_back(unit, action.replica_id)

    async def _route(
        self,
        replica_set: ReplicaSet,
        seen: Mapping[str, Replica],
        failures: Mapping[str, Failure],
        names: Iterable[str],
    ) -> None:
        """Route only slots whose version is at other addresses than before, or that wait for it."""
        served = pools.served_by_name(names, list(seen.values()), failures, policy=self._policy)
        before = self._routed.get(replica_set.name, {})
        changed = {
            name: each
            for name, each in served.items()
            if before.get(name) != each or name in replica_set.pending
        }
        if not changed:
            return
        has_switched = await self._switch(replica_set, changed)
        self._routed.setdefault(replica_set.name, {}).update(changed)
        if has_switched:
            failpoint("serving.route.switched")

    def _forget_names(self, replica_set: ReplicaSet) -> None:
        """Forget the names that the replica set serves no more."""
        routed = self._routed.get(replica_set.name, {})
        for gone in routed.keys() - set(pools.names_of(replica_set)):
            del routed[gone]

    async def _switch(self, replica_set: ReplicaSet, served: Mapping[str, Served]) -> bool:
        has_switched = False
        async with self._service.unit() as unit:
            stale = await store.stale_bases(unit.conn)
            slots_serving = await store.slots_serving(unit.conn, replica_set.name, served)
            awaited = {slot.pending.served_name for slot in slots_serving if slot.pending}
            times = await store.list_load_times(unit.conn, awaited) if awaited else ()
            for slot in slots_serving:
                if slot.is_pending_on(stale):
                    continue  # the batch in which it fails is still to come
                decision = slots.reconcile(slot, served, times=times, now=unit.now, keep=self._policy.keep)
                if decision.slot != slot:
                    has_switched = True
                    await apply(unit, decision)
        return has_switched

    async def _reconcile_candidates(
        self, replica_set: ReplicaSet, seen: Mapping[str, Replica], failures: Mapping[str, Failure]
    ) -> None:
        if not replica_set.candidates:
            return
        async with self._service.unit() as unit:
            for served_name, seen_then in replica_set.candidates.items():
                await self._reconcile_candidate(
                    unit, replica_set, seen, failures, seen_then.eval_id, served_name
                )

    async def _reconcile_candidate(
        self,
        unit: Unit,
        replica_set: ReplicaSet,
        seen: Mapping[str, Replica],
        failures: Mapping[str, Failure],
        eval_id: str,
        served_name: str,
    ) -> None:
        """Reconcile the candidate as it is now: it may have been given back, or asked for again, during the round."""
        candidate = await store.find_candidate(unit.conn, eval_id)
        if candidate is None or candidate.servable.served_name != served_name:
            return
        decision = candidates.reconcile(
            candidate, replica_set, list(seen.values()), failures, max_adapters=self._policy.max_adapters
        )
        if decision.candidate is None:
            await store.forget_candidate(unit.conn, eval_id)
        else:
            await store.save_candidate(unit.conn, decision.candidate)
        await unit.emit(*decision.events)


def _replica_set_of(replica_id: str) -> str:
    return replica_id.rpartition("-")[0]


def _with_leases(replica_set: ReplicaSet, leases: Mapping[str, HeldLease] | None) -> ReplicaSet:
    if leases is None:
        return replica_set
    own = {each: lease for each, lease in leases.items() if _replica_set_of(each) == replica_set.name}
    return replace(replica_set, leases=own)
