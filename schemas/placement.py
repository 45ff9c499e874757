"""Where the nodes of an attempt are placed: which pools suit a job, and which machines of a pool. Pure.

A pool has machines, which are numbered from 0, each with as many devices. One node alone takes the devices that it
asked for and shares its machine with others; the nodes of a gang take their machines whole.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple, Protocol

from schemas.base import CapacityType, DeviceKind
from schemas.numbers import plural
from schemas.specification import Resources

CAPACITY_TYPES: Mapping[str, tuple[CapacityType, ...]] = {
    CapacityType.SPOT: (CapacityType.SPOT,),
    CapacityType.ON_DEMAND: (CapacityType.ON_DEMAND,),
    "spot-first": (CapacityType.SPOT, CapacityType.ON_DEMAND),
}
"""What a job asks for -> the pools that it may have, the preferred ones first."""
GIB = 2**30


class Gang(Protocol):
    """Nodes with so many devices each."""

    @property
    def nodes(self) -> int: ...
    @property
    def devices_per_node(self) -> int: ...


class Leased(Protocol):
    """Devices that a service has, or waits for."""

    @property
    def purpose(self) -> str: ...
    @property
    def devices(self) -> int: ...
    @property
    def machine(self) -> int | None: ...


class Requirements(NamedTuple):
    """What of a job's resources decides where it may be placed: equal ones have room in the same places."""

    nodes: int
    devices_per_node: int
    device: DeviceKind | None
    accelerators: tuple[str, ...]
    device_memory_gib: float | None
    capacity_type: str
    pool: str | None


REQUIREMENTS = attrgetter(*Requirements._fields)


class Offer(Gang, Protocol):
    """What a pool has for jobs."""

    @property
    def name(self) -> str: ...
    @property
    def capacity_type(self) -> CapacityType: ...
    @property
    def device(self) -> DeviceKind | None: ...
    @property
    def accelerator(self) -> str | None: ...
    @property
    def device_memory_bytes(self) -> int | None: ...
    @property
    def max_devices_per_job(self) -> int | None: ...
    @property
    def tenants(self) -> tuple[str, ...]: ...
    @property
    def is_removed(self) -> bool: ...


def requirements(asked: Resources) -> Requirements:
    return Requirements._make(REQUIREMENTS(asked))


def needed_device(asked: Resources, pools: Iterable[Offer]) -> DeviceKind | None:
    """Return the kind of device that the job trains on; None: whatever the pool has that it names.

    Where it names neither device nor accelerator nor pool, it is a GPU wherever a pool has GPUs, whether or not one
    is free, and else a CPU: never what is cheapest.
    """
    if asked.device or asked.accelerators or asked.pool:
        return asked.device
    kinds = {pool.device for pool in pools if not pool.is_removed}
    return next((kind for kind in (DeviceKind.CUDA, DeviceKind.CPU) if kind in kinds), None)


def takes(pool: Offer, tenant: str) -> bool:
    """Return whether the pool takes jobs of the tenant at all."""
    return not pool.tenants or tenant in pool.tenants


def suits(asked: Resources, pool: Offer, needed: DeviceKind | None) -> bool:
    """Return whether the pool is one for the job, however many nodes it has. What an operator does not say of a pool
    keeps no job from it.
    """
    return (
        asked.pool in (None, pool.name)
        and pool.capacity_type in CAPACITY_TYPES[asked.capacity_type]
        and pool.devices_per_node >= asked.devices_per_node
        and (needed is None or pool.device in (None, needed))
        and _has_accelerator(asked, pool)
        and _has_memory(asked, pool)
        and is_within_limit(asked, pool)
    )


def is_within_limit(asked: Gang, pool: Offer) -> bool:
    """Return whether the job takes no more of the pool than its operator lets one have."""
    return pool.max_devices_per_job is None or taken(asked, pool) <= pool.max_devices_per_job


def _has_accelerator(asked: Resources, pool: Offer) -> bool:
    if not asked.accelerators:
        return True
    return pool.accelerator is not None and pool.accelerator.lower() in {
        each.lower() for each in asked.accelerators
    }


def _has_memory(asked: Resources, pool: Offer) -> bool:
    if asked.device_memory_gib is None or pool.device_memory_bytes is None:
        return True
    return pool.device_memory_bytes >= asked.device_memory_gib * GIB


def taken_per_node(asked: Gang, pool: Gang) -> int:
    """Return the devices that each node of the job takes on its machine, of as many as one of the pool's has."""
    return pool.devices_per_node if asked.nodes > 1 else asked.devices_per_node


def taken(asked: Gang, pool: Gang) -> int:
    """Return the devices that the job takes of the pool, in all."""
    return asked.nodes * taken_per_node(asked, pool)


def demand(asked: Resources, needed: DeviceKind | None) -> str:
    """Return what the job asks for, in words for people."""
    kinds = " or ".join(asked.accelerators) or (needed.value if needed else "")
    memory = f"at least {asked.device_memory_gib:g} GiB each" if asked.device_memory_gib else ""
    limits = ", ".join(filter(None, (str(asked.capacity_type), kinds, memory)))
    return f"{size(asked)} ({limits})"


def size(asked: Resources) -> str:
    if asked.nodes == 1:
        return f"{plural(asked.devices_per_node, 'device')} of one node"
    return f"{asked.nodes} whole nodes with {plural(asked.devices_per_node, 'device')} each"


def leases_in_words(leases: Iterable[Leased]) -> str:
    """Return how many devices each purpose has, and how many are kept for it; empty where nothing is leased."""
    held, kept = Counter[str](), Counter[str]()
    for lease in leases:
        (kept if lease.machine is None else held)[lease.purpose] += lease.devices
    words = [f"{count} held by {purpose}" for purpose, count in sorted(held.items())]
    return ", ".join(words + [f"{count} kept for {purpose}" for purpose, count in sorted(kept.items())])


def free_devices(pool: Gang, *, drained: Collection[int], held: Mapping[int, int]) -> dict[int, int]:
    """Return machine -> devices free on it, of as many machines as the pool has nodes.

    Of a pool that was made smaller those in use are the first; while more are in use than it has, it gives nothing.

    drained: machines that take no work and are not among the nodes.
    held: machine -> devices held on it; machines of which nothing is held are left out.
    """
    in_use = held.keys() - drained
    numbers = ({*range(pool.nodes + len(drained))} | in_use) - {*drained}
    machines = sorted(numbers, key=lambda number: (number not in in_use, number))[: pool.nodes]
    if len(in_use) > pool.nodes:
        return dict.fromkeys(sorted(machines), 0)
    return {machine: max(0, pool.devices_per_node - held.get(machine, 0)) for machine in sorted(machines)}


def left_by_waiting(free: Mapping[int, int], waiting: Iterable[int]) -> dict[int, int]:
    """Return what of the free devices is left to others while leases wait, each for so many devices of one machine.

    Each keeps what is free of the machine that has most left, so that what is given back there is enough in the end.

    free: machine -> devices free on it.
    """
    left = dict(free)
    for devices in waiting:
        if left:
            machine = max(left, key=lambda number: (left[number], -number))
            left[machine] -= min(devices, left[machine])
    return left


def best_fit(free: Mapping[int, int], *, nodes: int, devices: int) -> tuple[int, ...] | None:
    """Return the machines that have least to spare beyond so many devices, the lowest number first among equals; None
    where too few have room.

    free: machine -> devices free on it.
    """
    roomy = [(left, machine) for machine, left in free.items() if left >= devices]
    if len(roomy) < nodes:
        return None
    return tuple(machine for _, machine in heapq.nsmallest(nodes, roomy))
