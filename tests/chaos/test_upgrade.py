"""Upgrade under load: services of the release before run on this one's schemas, and are replaced one by one."""

import asyncio
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from deploy.local import environment
from deploy.local.stack import Stack
from deploy.local.supervisor import Program
from tests.chaos import rig
from tests.chaos.checker import hold
from tests.chaos.load import Load
from tests.chaos.scale import at_night, note, scaled, seed
from tests.chaos.test_rolling import GRACE_SECONDS, REST_SECONDS, has_changed, require_no_error
from tests.chaos.test_soak import outcomes, require_no_deadlock, require_none, say
from tests.releases import PREVIOUS, unpack_previous
from tests.waiting import until

pytestmark = [
    pytest.mark.stack,
    at_night("starts every service twice"),
]


async def test_services_are_upgraded_one_by_one_while_users_work(tmp_path: Path):
    if (release := unpack_previous(tmp_path / "release")) is None:
        pytest.skip(f"this clone does not reach back to {PREVIOUS[:8]}, the release before")
    stack = Stack(tmp_path / "state", tenants=(rig.TENANT,))
    assert stack.state.secret("s3:runner"), "as a deployment of that release has it"
    await stack.up(())
    try:
        await asyncio.to_thread(migrate_as, release, stack)
        rig.write_files(stack, rig.RUNNER_ENV | of_former_nodes(stack) | {"PYTHONPATH": str(release)})
        await rig.bring(stack, [program_of(release, stack, name) for name in stack.services])
        say("every service of the release before is up")
        load = Load(stack, seed(), max_open=scaled(4, 4, 12))
        try:
            await load.prepare(tmp_path)
            upgrading = asyncio.create_task(upgrade(stack, load))
            await asyncio.gather(upgrading, load.run_until(upgrading.done))
            await load.finish(within_seconds=REST_SECONDS)
            snapshot = (await hold(stack, within_seconds=REST_SECONDS, say=say)).history.snapshot
            await require_none(load)
        finally:
            await load.close()
        require_no_deadlock(stack)
        require_no_error(stack)
    finally:
        await stack.down()
    for what, count in sorted((outcomes(snapshot) + load.did).items()):
        say(f"{count:6} {what}")
    note("upgrade", services=len(stack.services), jobs=len(snapshot.jobs))


async def upgrade(stack: Stack, load: Load) -> None:
    """Schemas first, at work; then each service, the next one once users have moved something on the one before."""
    await until(partial(has_changed, load, 0), "a change before the upgrade")
    began = time.monotonic()
    await stack._migrate(*stack.services)
    say(f"schemas of this release after {time.monotonic() - began:.1f} s")
    for service in stack.services:
        changes = load.changes
        await until(partial(has_changed, load, changes), "a change that a user asked for")
        await stack._supervisor.stop(service, grace_seconds=GRACE_SECONDS)
        if service == "provisioner":  # from here on nodes are of this release
            environment.write_files(stack.state, stack.tenants)
            rig.write_files(stack, rig.RUNNER_ENV)
        stack._supervisor.start(rig.program(stack, service))
        await stack.wait_healthy(service)
        say(f"{service} is of this release")


def of_former_nodes(stack: Stack) -> dict[str, str]:
    """What nodes of that release have besides: the key of S3 that all of them shared."""
    key = stack.s3_credentials("runner")
    return {
        "RUNNER_S3_ENDPOINT": stack.s3_endpoint,
        "RUNNER_S3_ACCESS_KEY": key.access_key,
        "RUNNER_S3_SECRET_KEY": key.secret_key,
    }


def program_of(release: Path, stack: Stack, service: str) -> Program:
    """A service of that release with cheap children, with the same interpreter and settings."""
    current = rig.program(stack, service)
    command = [word.replace(f"{rig.REPOSITORY}/tests", f"{release}/tests") for word in current.command]
    env = {**current.env, "PYTHONPATH": str(release)}
    return replace(current, command=tuple(command), env=env, cwd=release)


def migrate_as(release: Path, stack: Stack) -> None:
    """Bring the schemas to where that release has them."""
    env = {
        "PYTHONPATH": str(release),
        **{f"{service.upper()}_POSTGRES_DSN": stack.postgres_dsn(service) for service in stack.services},
    }
    command = [sys.executable, "-m", "shared.postgres.migrate", *stack.services]
    subprocess.run(command, cwd=release, env=env, check=True)
