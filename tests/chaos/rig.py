"""A whole stack for chaos: every service behind proxies, training and scoring children that need no model.

The services are the real ones. Which child a node runner starts is a setting of the runner; the evaluator and
the serving controller run as programs of the tests that give them cheap children, with their own code.
"""

import json
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.local.processes import memory_bytes
from deploy.local.stack import Stack
from deploy.local.supervisor import Program
from tests.chaos.fronts import Fronts, fronts
from tests.chaos.nemesis import SmallDisk, small_disk
from tests.integration import stand_in_engine

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
TENANT = "demo"
POOLS = """
[pools.cpu-spot]
class = "spot"
nodes = 3
price_per_hour = 0.10

[pools.cpu-on-demand]
class = "on-demand"
nodes = 2
price_per_hour = 0.30
"""
RUNNER_ENV = {
    "RUNNER_CHILD_ARGV": json.dumps([sys.executable, "-m", "tests.chaos.trainer"]),
    "RUNNER_HEARTBEAT_EVERY": "PT2S",
    "RUNNER_DEFAULT_GRACE": "PT5S",
    "RUNNER_FLUSH_LIMIT": "PT10S",
    "RUNNER_STEP_LIMIT": "PT20S",
    "RUNNER_SETUP_LIMIT": "PT60S",
    "PYTHONPATH": str(REPOSITORY),
}
SERVICE_ENV = {
    "serving_controller": {"SERVING_CONTROLLER_KEEP_SECONDS": "3"},
    "evaluator": {"EVALUATOR_SCORING_SILENCE": "PT20S"},
}
STAND_INS = {
    "evaluator": (str(HERE / "stand_ins.py"), "evaluator"),
    "serving_controller": (str(Path(stand_in_engine.__file__)), "controller"),
}


@dataclass(frozen=True)
class Rig:
    stack: Stack
    lines: Fronts
    disk: SmallDisk | str
    """That of the nodes, or why it is not of its own."""

    def memory(self) -> dict[str, int]:
        """MiB of each service that runs now."""
        return {name: memory_bytes(self.stack.pid(name)) >> 20 for name in self.stack.services}


@asynccontextmanager
async def rig(folder: Path, *, seed: int) -> AsyncIterator[Rig]:
    stack = Stack(folder / "state", tenants=(TENANT,))
    with small_disk(stack.state.root / "nodes") as disk:
        await stack.up(())
        try:
            async with fronts(stack, seed=seed) as lines:
                try:
                    await _bring_services(stack, lines)
                    yield Rig(stack, lines, disk)
                finally:
                    await stack.down()
        finally:
            await stack.down()


async def _bring_services(stack: Stack, lines: Fronts) -> None:
    root = stack.state.root
    (root / "pools.toml").write_text(POOLS)
    proxied = lines.settings("RUNNER", role="scheduler")
    del proxied["RUNNER_POSTGRES_DSN"]
    with (root / "runner.env").open("a") as file:
        file.writelines(f"{name}={shlex.quote(value)}\n" for name, value in (RUNNER_ENV | proxied).items())
    await stack._migrate(*stack.services)
    for name in stack.services:
        stack._supervisor.start(_program(stack, lines, name))
    for name in stack.services:
        await stack.wait_healthy(name)


def _program(stack: Stack, lines: Fronts, name: str) -> Program:
    program = stack._program_of(name, env=lines.env(name) | SERVICE_ENV.get(name, {}))
    if name in STAND_INS:
        return replace(program, command=(sys.executable, *STAND_INS[name]))
    return program
