"""retune nodes: pools and the nodes of attempts."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from cli import kafka_commands
from cli.changes import Changes
from cli.commands.context import admin_api, connection
from cli.output import show, show_table
from ops.machines import Row, list_failures, list_machines
from schemas.node import (
    CordonMachine,
    DrainNode,
    LeasedDevices,
    MachineCordoned,
    MachineUncordoned,
    NodeLost,
    NodePreempted,
    PoolCapacityChanged,
    PreemptNode,
    SetPoolCapacity,
    UncordonMachine,
)
from schemas.placement import leases_in_words

app = typer.Typer(add_completion=False, help="Pools and nodes.", no_args_is_help=True)

ANSWER_SECONDS = 30.0
Machine = Annotated[
    str, typer.Argument(help="The host's name in a cluster; the machine's number in a pool of this machine.")
]


@app.command()
def pools() -> None:
    """List pools with their capacity, the price of a node with all its devices, and what services lease of them."""
    all_pools = admin_api().get("/admin/pools")["data"]
    names = (
        *("pool", "capacity_type", "accelerator", "nodes", "free", "devices_per_node", "free_devices"),
        "price_per_hour",
    )
    rows = [[*(pool.get(name) for name in names), _leased(pool)] for pool in all_pools]
    show_table(all_pools, (*names, "leases"), rows)


def _leased(pool: Mapping[str, Any]) -> str:
    return leases_in_words(map(LeasedDevices.model_validate, pool.get("leases", ()))) or "none"


@app.command(cls=Changes)
def preempt(
    node: Annotated[str, typer.Argument(help="A node's id, or job:<job id> for the first node of a job.")],
    notice: Annotated[float, typer.Option(help="Seconds of notice; 0: none.", min=0, max=3600)] = 30.0,
) -> None:
    """Take a node back, as a cloud does with spot capacity."""
    fact = kafka_commands.command(
        connection(),
        PreemptNode(node_id=node, notice_seconds=notice),
        until=[NodePreempted, NodeLost],
        seconds=ANSWER_SECONDS,
        answers=lambda fact: isinstance(fact, NodeLost) and node in (fact.node_id, f"job:{fact.job_id}"),
    )
    assert isinstance(fact, NodePreempted | NodeLost)
    deadline = f" by {fact.deadline:%H:%M:%S}" if isinstance(fact, NodePreempted) else ""
    show(fact.model_dump(mode="json"), f"{fact.node_id} of {fact.job_id} is taken back{deadline}")


@app.command(cls=Changes)
def drain(node: str, grace: Annotated[float, typer.Option(min=1, max=3600)] = 30.0) -> None:
    """Give the machine of a node no further work; what runs on it ends by notice."""
    fact = kafka_commands.command(
        connection(),
        DrainNode(node_id=node, grace_seconds=grace),
        until=[NodePreempted, PoolCapacityChanged],
        seconds=ANSWER_SECONDS,
    )
    show(fact.model_dump(mode="json"), f"{node} is drained")


@app.command("list")
def list_() -> None:
    """List machines that nodes are on or that take no work; their failures, and those that count for a cordon."""
    names = (
        *(
            "pool",
            "machine",
            "state",
            "devices_in_use",
            "jobs",
            "failures",
            "counted_failures",
            "counted_jobs",
        ),
        *("cordoned_by", "cordoned_at", "reason"),
    )
    _show(names, asyncio.run(list_machines(connection())))


@app.command()
def history(
    pool: Annotated[str | None, typer.Option(help="Of this pool alone.")] = None,
    machine: Annotated[str | None, typer.Option(help="Of this machine alone.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 50,
) -> None:
    """List failures of machines, the newest first: nodes of jobs and leases that were lost, training that failed."""
    names = (
        *("failed_at", "pool", "machine", "devices", "job_id", "attempt", "lease_id", "holder", "kind"),
        "message",
    )
    _show(names, asyncio.run(list_failures(connection(), pool=pool, machine=machine, limit=limit)))


@app.command(cls=Changes)
def cordon(
    pool: str,
    machine: Machine,
    reason: Annotated[str, typer.Option(help="Why, for people.")] = "",
) -> None:
    """Start nothing more on a machine; what runs there continues."""
    fact = kafka_commands.command(
        connection(),
        CordonMachine(pool=pool, machine=machine, reason=reason),
        until=[MachineCordoned],
        seconds=ANSWER_SECONDS,
    )
    show(fact.model_dump(mode="json"), f"{machine} of {pool} takes no more work")


@app.command(cls=Changes)
def uncordon(pool: str, machine: Machine) -> None:
    """Let a machine take work again."""
    fact = kafka_commands.command(
        connection(),
        UncordonMachine(pool=pool, machine=machine),
        until=[MachineUncordoned],
        seconds=ANSWER_SECONDS,
    )
    show(fact.model_dump(mode="json"), f"{machine} of {pool} takes work again")


@app.command("set-capacity", cls=Changes)
def set_capacity(pool: str, nodes: Annotated[int, typer.Argument(min=0, max=10_000)]) -> None:
    """Change how many nodes a pool has."""
    fact = kafka_commands.command(
        connection(),
        SetPoolCapacity(pool=pool, nodes=nodes),
        until=[PoolCapacityChanged],
        seconds=ANSWER_SECONDS,
    )
    assert isinstance(fact, PoolCapacityChanged)
    show(fact.model_dump(mode="json"), f"{fact.pool}: {fact.nodes} nodes, {fact.free} wholly free")


def _show(names: Sequence[str], rows: Sequence[Row]) -> None:
    show_table(rows, names, [[row[name] for name in names] for row in rows])
