"""retune nodes: pools and the nodes of attempts."""

from typing import Annotated

import typer

from cli import kafka_commands
from cli.commands.context import admin_api, connection
from cli.output import show, show_table
from schemas.node import DrainNode, NodeLost, NodePreempted, PoolCapacityChanged, PreemptNode, SetPoolCapacity

app = typer.Typer(add_completion=False, help="Pools and nodes.", no_args_is_help=True)

ANSWER_SECONDS = 30.0


@app.command()
def pools() -> None:
    """List pools with their capacity and the price of a node with all its devices."""
    all_pools = admin_api().get("/admin/pools")["data"]
    names = (
        *("pool", "capacity_type", "accelerator", "nodes", "free", "devices_per_node", "free_devices"),
        "price_per_hour",
    )
    show_table(all_pools, names, [[pool.get(name) for name in names] for pool in all_pools])


@app.command()
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


@app.command()
def drain(node: str, grace: Annotated[float, typer.Option(min=1, max=3600)] = 30.0) -> None:
    """Give the machine of a node no further work; what runs on it ends by notice."""
    fact = kafka_commands.command(
        connection(),
        DrainNode(node_id=node, grace_seconds=grace),
        until=[NodePreempted, PoolCapacityChanged],
        seconds=ANSWER_SECONDS,
    )
    show(fact.model_dump(mode="json"), f"{node} is drained")


@app.command("set-capacity")
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
