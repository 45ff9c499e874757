"""The machines of pools for the operator: those that take no work and why, those that are held, by which jobs, and
those that failed.

Pure. Other machines have no name outside the provisioner: they are counted.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from schemas.node import AllocatedNode, FailureKind, LeaseFailure, MachineFailure, PoolCapacityChanged
from services.gateway.machines import Cordon, HeldNodes
from services.gateway.page import formats
from services.gateway.page.views import Badge

STATES: Mapping[str, Badge] = {
    "cordoned": Badge("cordoned", "warn", "slashed-ring"),
    "drained": Badge("drained", "warn", "bars"),
    "in use": Badge("in use", "active", "play"),
    "free": Badge("free", "idle", "ring"),
}
KINDS: Mapping[FailureKind | None, str] = {
    FailureKind.NODE_LOST: "node lost",
    FailureKind.TRAINING_FAILED: "training failed",
    None: formats.UNKNOWN,
}
SHOWN = 100
"""Machines of a pool, those that take no work first."""


@dataclass(frozen=True)
class Machine:
    name: str
    """As the commands of `retune nodes` take it, of one that is cordoned; else its number, or its host's name."""
    state: str = "in use"
    host: str = ""
    devices: int = 0
    """Devices in use."""
    held_by: tuple[HeldNodes, ...] = ()
    leased_for: tuple[str, ...] = ()
    source: str = ""
    reason: str = ""
    since: datetime | None = None
    failures: tuple[MachineFailure | LeaseFailure, ...] = ()
    """Those that are announced, the newest first."""
    counted: str = ""
    """What of them counts for a cordon; empty where that is not known."""

    @property
    def badge(self) -> Badge:
        return STATES[self.state]


@dataclass(frozen=True)
class Failure:
    fact: MachineFailure | LeaseFailure
    what: str
    """What failed, in a word or two."""
    subject_id: str
    """Id of the job, or of the lease."""
    of: str
    """Which attempt of the job, or what the lease was for and whose."""


@dataclass(frozen=True)
class Pool:
    fact: PoolCapacityChanged
    machines: tuple[Machine, ...]
    num_left_out: int

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The newest failures of all its machines, each with the word for what failed and what ran there."""
        return tuple(map(_shown, failures_of(self.fact)))


@dataclass
class _Used:
    host: str = ""
    devices: int = 0
    held_by: list[HeldNodes] = field(default_factory=list)
    leased_for: list[str] = field(default_factory=list)


def pools(
    facts: Sequence[PoolCapacityChanged],
    held: Sequence[HeldNodes],
    cordons: Sequence[Cordon],
    *,
    now: datetime,
) -> list[Pool]:
    return [_pool(fact, held, cordons, now=now) for fact in facts]


def failures_of(fact: PoolCapacityChanged) -> tuple[MachineFailure | LeaseFailure, ...]:
    """Return the newest failures of a pool's machines, the newest first, under attempts and under leases."""
    return tuple(
        sorted((*fact.failures, *fact.lease_failures), key=lambda each: each.failed_at, reverse=True)
    )


def _shown(failure: MachineFailure | LeaseFailure) -> Failure:
    if isinstance(failure, MachineFailure):
        return Failure(failure, KINDS[failure.kind], failure.job_id, f"attempt {failure.attempt}")
    what = "machine lost" if failure.has_lost_machine else "node ended"
    return Failure(failure, what, failure.lease_id, f"leased for {failure.purpose} by {failure.holder}")


def counted(
    failures: Sequence[MachineFailure | LeaseFailure], fact: PoolCapacityChanged, *, now: datetime
) -> str:
    """Return what of a machine's failures counts for a cordon, and when it is cordoned."""
    if not failures or fact.cordon_after_failures is None:
        return ""
    if fact.cordon_after_failures == 0:
        return "only an operator cordons machines of this pool"
    counting = [each for each in failures if each.counts_until is not None and each.counts_until > now]
    jobs = formats.plural(len({each.subject for each in counting}), "job")
    if any(isinstance(each, LeaseFailure) for each in counting):
        jobs += " or service(s)"
    least = formats.plural(fact.cordon_after_jobs or 1, "job")
    words = f"counting {len(counting)} from {jobs}" if counting else "none counts"
    return f"{words}; cordoned at {fact.cordon_after_failures} from {least}"


def _pool(
    fact: PoolCapacityChanged, held: Sequence[HeldNodes], cordons: Sequence[Cordon], *, now: datetime
) -> Pool:
    used = _used(fact, held)
    why = {cordon.machine: cordon for cordon in cordons if cordon.pool == fact.pool}
    machines = {name: _machine(name, fact, each, why) for name, each in used.items()}
    listed = {machine.name for machine in machines.values()}
    idle = [*fact.cordoned, *(str(number) for number in fact.drained if str(number) not in fact.cordoned)]
    every = [*machines.values(), *(_machine(name, fact, _Used(), why) for name in idle if name not in listed)]
    known = {name for machine in every for name in (machine.name, machine.host)}
    failed = dict.fromkeys(each.machine for each in failures_of(fact) if each.machine not in known)
    every += [Machine(name, "free") for name in failed]
    every = [_with_failures(machine, fact, now=now) for machine in every]
    every.sort(key=lambda each: ([*STATES].index(each.state), len(each.name), each.name))
    return Pool(fact, tuple(every[:SHOWN]), max(0, len(every) - SHOWN))


def _with_failures(machine: Machine, fact: PoolCapacityChanged, *, now: datetime) -> Machine:
    failures = tuple(each for each in failures_of(fact) if each.machine in (machine.name, machine.host))
    return replace(machine, failures=failures, counted=counted(failures, fact, now=now))


def _used(fact: PoolCapacityChanged, held: Sequence[HeldNodes]) -> dict[str, _Used]:
    """Return what is in use of each machine, by its number, or its host's name where it has none."""
    used: dict[str, _Used] = defaultdict(_Used)
    for holder in held:
        for node in holder.nodes if holder.pool == fact.pool else ():
            if node.released_at is None:
                _hold(used[_name(node)], holder, node, fact.devices_per_node)
    for lease in fact.leases:
        if lease.machine is not None:
            machine = used[str(lease.machine)]
            machine.devices += lease.devices
            machine.leased_for.append(lease.purpose)
    return used


def _hold(used: _Used, holder: HeldNodes, node: AllocatedNode, devices_per_node: int) -> None:
    used.host = node.host or used.host
    used.devices += len(node.devices) or devices_per_node
    if holder not in used.held_by:
        used.held_by.append(holder)


def _name(node: AllocatedNode) -> str:
    return (node.host or node.node_id) if node.machine is None else str(node.machine)


def _machine(name: str, fact: PoolCapacityChanged, used: _Used, why: Mapping[str, Cordon]) -> Machine:
    """A cordon names a machine of a cluster by its host, others by their number."""
    machine = Machine(
        name, "in use", used.host, used.devices, tuple(used.held_by), tuple(sorted(used.leased_for))
    )
    cordoned_as = next((each for each in (name, used.host) if each in fact.cordoned), None)
    if cordoned_as is not None:
        machine = replace(machine, name=cordoned_as, state="cordoned")
        if cordon := why.get(cordoned_as):
            machine = replace(machine, source=cordon.source, reason=cordon.reason, since=cordon.changed_at)
    elif name in map(str, fact.drained):
        machine = replace(machine, state="drained")
    return machine
