"""What becomes of pools when the operator's file is read, and when a machine is drained. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from services.provisioner.model import Pool


def on_pools_read(known: Mapping[str, Pool], file: Mapping[str, Pool]) -> list[Pool]:
    """Return the pools as they are to be from now on. One that left the file gives no more nodes."""
    kept = [_as_in_file(known.get(name), pool) for name, pool in file.items()]
    gone = [
        replace(pool, nodes=0, file_nodes=0, drained=(), is_removed=True)
        for name, pool in known.items()
        if name not in file
    ]
    return kept + gone


def on_drained(pool: Pool, machine: int) -> Pool:
    """Return the pool without the machine, until its capacity is set again."""
    if machine in pool.unused:
        return pool
    nodes = pool.nodes - (machine in pool.free)
    return replace(pool, nodes=nodes, drained=tuple(sorted((*pool.drained, machine))))


def on_counted(pool: Pool, machines: frozenset[str]) -> Pool:
    """Return the pool with these machines of its cluster, which take work, but for those that are cordoned."""
    return replace(pool, nodes=len(machines - {*pool.cordoned})) if pool.is_counted else pool


def _as_in_file(known: Pool | None, pool: Pool) -> Pool:
    if known is None:
        return pool
    kept = replace(pool, leased=known.leased, leases=known.leases, cordoned=known.cordoned)
    if not pool.is_counted and pool.file_nodes != known.file_nodes:
        return replace(kept, nodes=max(0, pool.nodes - len(known.cordoned)))
    return replace(kept, nodes=known.nodes, drained=known.drained)
