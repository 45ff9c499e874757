"""A whole stack for chaos: every service behind proxies, training and scoring children that need no model.

The services are the real ones. Which child a node runner starts is a setting of the runner; the evaluator and
the serving controller run as programs of the tests that give them cheap children, with their own code.
"""

import json
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from deploy.local.stack import Stack
from deploy.local.supervisor import Program
from tests.chaos.fronts import Fronts, fronts
from tests.chaos.nemesis import SmallDisk, small_disk
from tests.integration import stand_in_engine

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
TENANT = "demo"
INSTANCES = (0, 1)
POOLS = """
[pools.cpu-spot]
capacity_type = "spot"
device = "cpu"
nodes = 3
price_per_device_hour = 0.10

[pools.cpu-on-demand]
capacity_type = "on-demand"
device = "cpu"
nodes = 2
price_per_device_hour = 0.30
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
    "registry": (str(HERE / "stand_ins.py"), "registry"),
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
        return {
            name: psutil.Process(self.stack.pid(name)).memory_info().rss >> 20 for name in self.stack.services
        }

    async def start(self, service: str) -> None:
        """Start a service that was stopped, as it was before."""
        self.stack._supervisor.start(program(self.stack, service, env=self.lines.env(service)))


@asynccontextmanager
async def rig(folder: Path, *, seed: int) -> AsyncIterator[Rig]:
    stack = Stack(folder / "state", tenants=(TENANT,))
    with small_disk(stack.state.root / "nodes") as disk:
        await stack.up(())
        try:
            async with fronts(stack, seed=seed) as lines:
                proxied = lines.settings("RUNNER", role="scheduler")
                del proxied["RUNNER_POSTGRES_DSN"], proxied["RUNNER_S3_ENDPOINT"]
                write_files(stack, RUNNER_ENV | proxied)
                try:
                    await stack._migrate(*stack.services)
                    await bring(stack, [program(stack, name, env=lines.env(name)) for name in stack.services])
                    yield Rig(stack, lines, disk)
                finally:
                    await stack.down()
        finally:
            await stack.down()


@asynccontextmanager
async def pairs(folder: Path, *, report: Callable[[str], None]) -> AsyncIterator[Stack]:
    """Two processes of every service, all started at once, on good lines."""
    stack = Stack(folder / "state", tenants=(TENANT,), report=report)
    await stack.up(())
    try:
        write_files(stack, RUNNER_ENV)
        await stack._migrate(*stack.services)
        await bring(
            stack, [program(stack, name, instance) for instance in INSTANCES for name in stack.services]
        )
        yield stack
    finally:
        await stack.down()


def program(stack: Stack, service: str, instance: int = 0, env: Mapping[str, str] | None = None) -> Program:
    """A process of the service, with cheap children."""
    program = stack._program_of(service, instance, {**(env or {}), **SERVICE_ENV.get(service, {})})
    if service in STAND_INS:
        return replace(program, command=(sys.executable, *STAND_INS[service]))
    return program


def write_files(stack: Stack, runner_env: Mapping[str, str]) -> None:
    """The pools, and what node runners have in their environment besides what it holds."""
    root = stack.state.root
    (root / "pools.toml").write_text(POOLS)
    with (root / "runner.env").open("a") as file:
        file.writelines(f"{name}={shlex.quote(value)}\n" for name, value in runner_env.items())


async def bring(stack: Stack, programs: Sequence[Program]) -> None:
    """Start them at once and wait until all are healthy."""
    for each in programs:
        stack._supervisor.start(each)
    for each in programs:
        await stack.wait_healthy(each.name)
