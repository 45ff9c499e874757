"""A controller that dies between loading, seeing it loaded and routing: the story is that of one that lived."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.local.stack import Stack
from services.serving_controller.clients.local import Engine, LocalBackend
from shared.postgres.migrate import migrate
from shared.storage.s3 import S3ObjectStore
from tests.integration.engines import Engines
from tests.integration.test_serving_controller import World, forget_pools, put_a_base
from tests.integration.voices import ear, voices
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.stack, pytest.mark.crash_matrix]

PROGRAM = Path(__file__).with_name("stand_in_engine.py")
COMMITTED = "serving.route.switched"
"""The relay may have sent DeploymentReady by then."""
FAILPOINTS = ("serving.load.one", "serving.load.kept", COMMITTED)


@pytest.fixture
def env(stack: Stack) -> dict[str, str]:
    return stack.service_env("serving_controller") | {"SERVING_CONTROLLER_LOOK_EVERY_SECONDS": "0.1"}


@pytest.fixture
async def world(stack: Stack, env: dict[str, str], tmp_path: Path) -> AsyncIterator[World]:
    await migrate("serving_controller", stack.postgres_dsn("serving_controller"))
    await forget_pools(stack)
    key = stack.s3_credentials("root")
    objects = S3ObjectStore(stack.s3_endpoint, key.access_key, key.secret_key, bucket=stack.s3_bucket)
    async with voices(stack) as voice, ear(stack, "deployment.events") as heard:
        base_sha = await put_a_base(objects, tmp_path / "base")
        world = World(voice, heard, Engines(tmp_path / "replicas"), objects, base_sha, tmp_path)
        yield world
    await forget_pools(stack)
    await replicas(env).end(world.replica)


def replicas(env: dict[str, str]) -> LocalBackend:
    names = ("SERVING_CONTROLLER_REPLICAS_DIR", "SERVING_CONTROLLER_KEYS_DIR")
    return LocalBackend(*(Path(env[name]) for name in names), engine=Engine())


@asynccontextmanager
async def controller(env: dict[str, str], failpoints: str = "") -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAM), "controller"), env=os.environ | env | {"FAILPOINTS": failpoints}
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_a_deployment_comes_about_once(world, env):
    version = await world.a_version()
    async with controller(env):
        await world.register()
        # The name may be behind much that other tests have left on its topic, and an approval be known before it.
        await world.heard("ReplicaReady")
    incarnations = set()
    for failpoint in FAILPOINTS:
        async with controller(env, f"{failpoint}=kill") as process:
            if failpoint == FAILPOINTS[0]:
                await world.approve(version, "support", 1)
            assert await asyncio.wait_for(process.wait(), PATIENCE_SECONDS) == -signal.SIGKILL, failpoint
        incarnations.add((await replicas(env).inspect(world.replica)).incarnation)
        assert failpoint == COMMITTED or world.facts("DeploymentReady") == []
    async with controller(env):
        ready = await world.heard("DeploymentReady", generation=1)
    assert world.ear.types(world.pool) == ["ReplicaReady", "AdapterLoaded", "DeploymentReady"]
    assert incarnations == {ready.replicas[0].incarnation}
    assert ready.digest == version.digest
    # One process loaded it and the next one routed it.
    [steps] = ready.swap.replicas
    assert (steps.replica_id, steps.load_seconds > 0) == (world.replica, True)
