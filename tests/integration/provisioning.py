"""A provisioner with pools of a test's own, whose runners start the scripted child."""

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from deploy.local.stack import Stack
from tests.integration.attempts import FAKE_CHILD, Attempts


def provisioner_env_of(
    stack: Stack, folder: Path, pools: str, *, save_seconds: float = 0.0
) -> dict[str, str]:
    """Write the pools and the runners' environment; return the provisioner's variables.

    `save_seconds`: what a child that is asked to stop takes for its last bundle.
    """
    (folder / "pools.toml").write_text(pools)
    script = json.dumps({"steps": 10_000, "hold_at": 3, "save_seconds": save_seconds})
    runner_env = {
        "RUNNER_CHILD_ARGV": json.dumps([sys.executable, str(FAKE_CHILD), script]),
        "RUNNER_HEARTBEAT_EVERY": "PT0.5S",
    }
    own = "".join(f"{name}='{value}'\n" for name, value in runner_env.items())
    (folder / "runner.env").write_text((stack.state.root / "runner.env").read_text() + own)
    return {
        "PROVISIONER_POOLS_FILE": str(folder / "pools.toml"),
        "PROVISIONER_NODES_DIR": str(folder / "nodes"),
        "PROVISIONER_RUNNER_ENV_FILE": str(folder / "runner.env"),
    }


@asynccontextmanager
async def attempts_on(stack: Stack, env: Mapping[str, str]) -> AsyncIterator[Attempts]:
    """With the provisioner and the trainer_agent up. Attempts are for pool `test` where a test names none."""
    async with Attempts.on(stack, pool="test") as attempts:
        await stack.start("provisioner", env=env)
        await stack.start("trainer_agent")
        await stack.wait_healthy("provisioner")
        await stack.wait_healthy("trainer_agent")
        yield attempts
        await stack.stop("trainer_agent")
        await stack.stop("provisioner")
