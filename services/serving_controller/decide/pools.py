"""What replicas there should be, and the next steps from what there is to that."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from schemas.capabilities import BaseCapabilities
from schemas.specification import Method
from services.serving_controller.decide import notices
from services.serving_controller.decide.candidates import candidates_by_replica
from services.serving_controller.decide.slots import Served
from services.serving_controller.model import (
    Candidate,
    Failure,
    Phase,
    Replica,
    ReplicaSet,
    ReplicaSetServables,
    Retired,
    Servable,
    allowed_rank,
    pool_of,
)
from shared.device_leases.lease import HeldLease, LeaseState


@dataclass(frozen=True)
class Policy:
    replicas_per_pool: int = 1
    max_replicas_per_pool: int = 1
    """Replicas while requests wait (decide/scaling.py)."""
    requests_per_replica: int = 32
    """Requests that a replica computes at once; others wait."""
    scale_up_after: timedelta = timedelta(seconds=15)
    """How long requests wait before another replica is started."""
    scale_down_after: timedelta = timedelta(minutes=5)
    """How long the others could answer all before a replica leaves."""
    drain_within: timedelta = timedelta(minutes=10)
    """Longest time that a leaving replica has for its requests."""
    unrouted_after: timedelta = timedelta(seconds=5)
    """Time in which gateways hear that a replica leaves: it may have no request and get one yet."""
    serve_base_models: bool = True
    """Start a base model's replicas at its registration; else at the first approval."""
    rank: int = 32
    """Rank that replicas are started with at least; a higher one costs memory and time of every request."""
    max_adapters: int = 8
    """Adapters in one batch: a candidate is loaded only while there are fewer."""
    resident_adapters: int = 64
    """Loaded on each replica, besides those that somebody waits for."""
    keep: timedelta = timedelta(seconds=60)
    """How long what is not routed any more stays loaded."""
    start_within: timedelta = timedelta(minutes=10)
    lasting: timedelta = timedelta(minutes=2)
    """A replica that ran so long did start; its end counts as the first."""
    first_pause: timedelta = timedelta(seconds=1)
    longest_pause: timedelta = timedelta(minutes=1)
    """Longer would spare less than it costs: whoever is approved is not served meanwhile."""
    starts_before_failure: int = 4
    """Starts in a row that did not last before deployments that wait for the replica fail."""
    loads_before_failure: int = 5
    """Failed loads of what was served before, by one replica, until it fails; with the same pauses as starts."""


@dataclass(frozen=True)
class Start:
    replica_id: str
    max_rank: int
    failures: int
    lease: HeldLease | None = None
    """Lease of its devices; None where it needs none."""


@dataclass(frozen=True)
class AskDevices:
    """A replica is to be started once it has devices."""

    replica_id: str


@dataclass(frozen=True)
class AwaitDevices:
    """A replica is started when its devices are free."""

    replica_id: str
    waiting_for: str


@dataclass(frozen=True)
class GiveBackDevices:
    """Nothing of the replica runs, and it is not to be started any more."""

    replica_id: str


@dataclass(frozen=True)
class End:
    """Make sure that nothing of it runs, and say so if it was announced."""

    replica: Replica
    """The replica as it shall be kept."""
    reason: str


@dataclass(frozen=True)
class Drain:
    """Have no more requests sent to it."""

    replica: Replica
    """The replica as it shall be kept."""


@dataclass(frozen=True)
class Forget:
    replica: Replica


@dataclass(frozen=True)
class Admit:
    """The replica answers: prove that its answers are right."""

    replica: Replica


@dataclass(frozen=True)
class Announce:
    replica: Replica
    base_names: tuple[str, ...]


@dataclass(frozen=True)
class Load:
    replica_id: str
    servable: Servable


@dataclass(frozen=True)
class Unload:
    replica_id: str
    served_name: str


Step = Start | End | Drain | Forget | Admit | Announce | Load | Unload
"""What is done to a replica."""
Action = Step | AskDevices | AwaitDevices | GiveBackDevices


def adapter_layers(capabilities: BaseCapabilities | None) -> tuple[str, ...] | None:
    """Return the layers that a base model's adapters are on; None: all that vLLM knows, empty: there are no adapters.

    vLLM ends at its start where it is asked for adapters of a class that takes none. Adapters of experts are not
    trained.
    """
    if capabilities is None:
        return None
    if Method.LORA in capabilities.refused_methods:
        return ()
    return capabilities.lora_targets if capabilities.num_experts else None


def resident(of_set: ReplicaSetServables, *, at_most: int) -> ReplicaSetServables:
    """What shall be loaded: all that is approved and not served yet, and of the others the first in the order.

    What waits takes nobody's place before it is served: it may be long in coming.
    """
    served = [name for name in of_set.servables if name not in of_set.pending]
    beyond = frozenset(served[at_most:])
    servables = {name: each for name, each in of_set.servables.items() if name not in beyond}
    return replace(of_set, servables=servables)


def desired_replica_sets(
    servables_by_replica_set: Mapping[str, ReplicaSetServables],
    retired: Iterable[Retired],
    base_models: Mapping[str, str],
    *,
    adapter_layers: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    candidates: Iterable[Candidate] = (),
    now: datetime,
    policy: Policy,
) -> dict[str, ReplicaSet]:
    """The replica sets that should run, by name. `base_models`: sha by registered name.

    adapter_layers: the layers that adapters are on, by sha of base models that have not all of them.
    A candidate is lent a replica where there is a replica set; none is started for them.
    """
    replica_sets: dict[str, ReplicaSet] = {}
    if policy.serve_base_models:
        for base_sha in base_models.values():
            replica_sets[pool_of(base_sha)] = _base_replica_set(base_sha, base_models, policy)
    for name, of_set in servables_by_replica_set.items():
        anyone = next(iter(of_set.servables.values()))
        replica_set = _replica_set_of(anyone, base_models, policy)
        adapters = {} if replica_set.full else of_set.servables
        rank = 0 if replica_set.full else of_set.max_rank
        replica_sets[name] = replace(
            replica_set, adapters=adapters, pending=of_set.pending, desired_rank=rank
        )
    for old in (each.servable for each in retired if each.keep_until > now):
        replica_set = replica_sets.get(old.replica_set) or _replica_set_of(old, base_models, policy)
        if old.kind == "adapter" and old.served_name not in replica_set.adapters:
            adapters = {**replica_set.adapters, old.served_name: old}
            replica_set = replace(
                replica_set, adapters=adapters, leaving=replica_set.leaving | {old.served_name}
            )
        replica_sets[replica_set.name] = replica_set
    for candidate in candidates:
        if candidate.until > now and (lender := replica_sets.get(candidate.servable.replica_set)):
            lent = {**lender.candidates, candidate.servable.served_name: candidate}
            replica_sets[lender.name] = replace(lender, candidates=lent)
    return {
        name: replace(
            replica_set, adapter_layers=() if replica_set.full else adapter_layers.get(replica_set.base_sha)
        )
        for name, replica_set in replica_sets.items()
    }


def _replica_set_of(servable: Servable, base_models: Mapping[str, str], policy: Policy) -> ReplicaSet:
    if servable.kind == "adapter":
        return _base_replica_set(servable.base_sha, base_models, policy)
    return ReplicaSet(
        servable.replica_set, servable.base_sha, full=servable, num_replicas=policy.replicas_per_pool
    )


def _base_replica_set(base_sha: str, base_models: Mapping[str, str], policy: Policy) -> ReplicaSet:
    names = tuple(sorted(name for name, sha in base_models.items() if sha == base_sha))
    return ReplicaSet(pool_of(base_sha), base_sha, base_names=names, num_replicas=policy.replicas_per_pool)


def plan(
    replica_set: ReplicaSet, replicas: Sequence[Replica], *, now: datetime, policy: Policy
) -> tuple[Action, ...]:
    """The steps of this round. A step that cannot be done now is planned again in the next one."""
    known = {replica.replica_id: replica for replica in replicas}
    held = candidates_by_replica(replica_set, replicas, max_adapters=policy.max_adapters)
    replica_ids = notices.desired_ids(replica_set, replicas)
    actions: list[Action] = []
    for replica_id in replica_ids:
        actions += _step(
            replica_set, replica_id, known.get(replica_id), held.get(replica_id, {}), now, policy
        )
    for replica_id in sorted(known.keys() - set(replica_ids)):
        replica, candidates = known[replica_id], held.get(replica_id, {})
        deadline = notices.deadline_of(replica_set, replica)
        if deadline is not None and replica_set.num_replicas:
            is_time = notices.is_time_to_leave(replica_set, deadline, replicas, now=now)
            actions += _go(replica_set, replica, candidates, deadline, now, policy, is_time=is_time)
        else:
            actions += _leave(replica_set, replica, candidates, now, policy)
    spare = (replica_set.leases or {}).keys() - known.keys() - set(replica_ids)
    actions += [GiveBackDevices(replica_id) for replica_id in sorted(spare)]
    return tuple(actions) or _replace_for_rank(replica_set, replicas, now)


def _step(
    replica_set: ReplicaSet,
    replica_id: str,
    replica: Replica | None,
    candidates: Mapping[str, Candidate],
    now: datetime,
    policy: Policy,
) -> list[Action]:
    if replica is None or replica.phase is Phase.LOST:
        failures = replica.failures if replica else 0
        is_due = replica is None or replica.not_before is None or replica.not_before <= now
        rank = max(allowed_rank(policy.rank), replica_set.max_rank) if replica_set.adapter_layers != () else 0
        return [_start(replica_set, replica_id, rank, failures, now)] if is_due else []
    if reason := _fault(replica, now, policy) or _without_devices(replica_set, replica_id):
        return [end(replica, reason, now=now, policy=policy)]
    if replica.phase is Phase.LEAVING:
        return _drained(replica, now, policy)
    if replica.phase is Phase.STARTING:
        return [Admit(replica)] if replica.answers else []
    return _sync_adapters(replica_set, replica, candidates)


def _start(replica_set: ReplicaSet, replica_id: str, rank: int, failures: int, now: datetime) -> Action:
    """Return its start, or what must come before that. Where its devices are refused, the start fails by that."""
    if replica_set.leases is None:
        return Start(replica_id, rank, failures)
    lease = replica_set.leases.get(replica_id)
    if lease is None or lease.state is LeaseState.ENDED:
        return AskDevices(replica_id)
    if lease.is_awaited(now):
        return AwaitDevices(replica_id, lease.reason)
    return Start(replica_id, rank, failures, lease)


def _without_devices(replica_set: ReplicaSet, replica_id: str) -> str:
    """Say why a replica may not run on; empty where it has its devices, or needs no lease of them."""
    if replica_set.leases is None:
        return ""
    lease = replica_set.leases.get(replica_id)
    if lease is None:
        return "it has no lease of its devices"
    return "" if lease.state is LeaseState.HELD else lease.reason


def _fault(replica: Replica, now: datetime, policy: Policy) -> str:
    if not replica.is_alive:
        return replica.reason or "the process is gone"
    if replica.answers:
        return ""
    if replica.phase is Phase.READY:
        return "the process does not answer"
    waited = now - replica.started_at
    return f"no answer {waited.total_seconds():.0f} s after its start" if waited > policy.start_within else ""


def end(replica: Replica, reason: str, *, now: datetime, policy: Policy) -> End:
    """Give it up and try again, the later the more often it did not last."""
    lasted = replica.phase is Phase.READY and now - replica.started_at >= policy.lasting
    failures = 1 if lasted else replica.failures + 1
    pause = min(policy.longest_pause, policy.first_pause * 2.0 ** (failures - 1))
    return End(replica.lost(reason, failures=failures, not_before=now + pause), reason)


def _leave(
    replica_set: ReplicaSet,
    replica: Replica,
    candidates: Mapping[str, Candidate],
    now: datetime,
    policy: Policy,
) -> list[Action]:
    """End a replica that is one too many: where others go on, once it has answered what it was asked."""
    if replica.phase is Phase.LOST:
        return [Forget(replica)]
    reason = "not needed any more"
    if replica_set.num_replicas == 0 or not replica.answers or replica.phase is Phase.STARTING:
        return [End(replica.lost(reason, failures=0, not_before=now), reason)]
    if replica.phase is Phase.LEAVING:
        return _drained(replica, now, policy)
    if candidates:
        return _sync_adapters(replica_set, replica, candidates)
    return [Drain(replica.leaving(reason, until=now + policy.drain_within))]


def _go(
    replica_set: ReplicaSet,
    replica: Replica,
    candidates: Mapping[str, Candidate],
    deadline: datetime,
    now: datetime,
    policy: Policy,
    *,
    is_time: bool,
) -> list[Action]:
    """Let a replica serve until others do, and then leave before its node ends at the deadline."""
    if reason := _fault(replica, now, policy) or _without_devices(replica_set, replica.replica_id):
        return [end(replica, reason, now=now, policy=policy)]
    reason = notices.reason_of(replica_set, replica)
    if replica.phase is Phase.STARTING:
        return [End(replica.lost(reason, failures=0, not_before=now), reason)]
    if replica.phase is Phase.LEAVING:
        if now >= deadline - notices.END_BEFORE:
            return [End(replica.lost(replica.reason, failures=0, not_before=now), replica.reason)]
        return _drained(replica, now, policy)
    if not is_time:
        return _sync_adapters(replica_set, replica, candidates)
    return [Drain(replica.leaving(reason, until=now + policy.drain_within))]


def _drained(replica: Replica, now: datetime, policy: Policy) -> list[Action]:
    assert replica.not_before is not None, "it is set when a replica begins to leave"
    is_known_to_leave = now >= replica.not_before - policy.drain_within + policy.unrouted_after
    if now < replica.not_before and (replica.is_busy or not is_known_to_leave):
        return []
    return [End(replica.lost(replica.reason, failures=0, not_before=now), replica.reason)]


def _sync_adapters(
    replica_set: ReplicaSet, replica: Replica, candidates: Mapping[str, Candidate]
) -> list[Action]:
    actions: list[Action] = []
    if names := tuple(name for name in replica_set.base_names if name not in replica.announced):
        actions.append(Announce(replica, names))
    if replica_set.full is not None:
        return actions
    for name, servable in replica_set.adapters.items():
        if name in replica_set.leaving or name in replica.loaded:
            continue
        if servable.rank <= replica.max_rank:
            actions.append(Load(replica.replica_id, servable))
    for name, candidate in sorted(candidates.items()):
        if name not in replica.loaded:
            actions.append(Load(replica.replica_id, candidate.servable))
    unwanted = (replica.loaded | replica.strays) - replica_set.adapters.keys() - candidates.keys()
    actions += [Unload(replica.replica_id, name) for name in sorted(unwanted)]
    return actions


def _replace_for_rank(
    replica_set: ReplicaSet, replicas: Sequence[Replica], now: datetime
) -> tuple[Action, ...]:
    """Restart one replica that was started for lower ranks, while all others serve."""
    if any(replica.phase is not Phase.READY for replica in replicas):
        return ()
    small = [replica for replica in replicas if replica.max_rank < replica_set.max_rank]
    if not small:
        return ()
    reason = f"started for rank {small[0].max_rank}, rank {replica_set.max_rank} is needed"
    return (End(small[0].lost(reason, failures=0, not_before=now), reason),)


def names_of(replica_set: ReplicaSet) -> Iterable[str]:
    """What the replica set shall serve."""
    if replica_set.full:
        return (replica_set.full.served_name,)
    return tuple(name for name in replica_set.adapters if name not in replica_set.leaving)


def served_by_name(
    names: Iterable[str], replicas: Sequence[Replica], failures: Mapping[str, Failure], *, policy: Policy
) -> dict[str, Served]:
    """What is loaded where, for each of these names."""
    ready = [replica for replica in replicas if replica.phase is Phase.READY]
    broken = None if ready else _broken(replicas, policy)
    return {name: _served(name, ready, failures.get(name) or broken) for name in names}


def _served(name: str, ready: Sequence[Replica], failure: Failure | None) -> Served:
    having = frozenset(replica.address for replica in ready if name in replica.loaded)
    return Served(having, is_everywhere=bool(ready) and len(having) == len(ready), failure=failure)


def _broken(replicas: Sequence[Replica], policy: Policy) -> Failure | None:
    for replica in replicas:
        if replica.phase is Phase.LOST and replica.failures >= policy.starts_before_failure:
            return Failure(
                "replica", f"{replica.replica_id} failed {replica.failures} times: {replica.reason}"
            )
    return None
