"""Processes of the stack's services that die at one place of their code, live again, or stand beside another."""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from deploy.bootstrap import kafka as bootstrap
from deploy.local.environment import process_name
from deploy.local.site import site as local_site
from deploy.local.stack import Stack
from shared.messaging.group_members import members_of, remove_members, static_members
from tests.chaos.scale import note
from tests.waiting import PATIENCE_SECONDS


@asynccontextmanager
async def killed_at(
    stack: Stack, service: str, failpoint: str, *, at_pass: int = 1, env: Mapping[str, str]
) -> AsyncIterator[None]:
    """What is done inside makes the service pass this place, where it dies. It is down before and after."""
    await stack.stop(service)
    stack.supervise = False
    try:
        await stack.start(service, env={**env, "FAILPOINTS": f"{failpoint}=kill@{at_pass}"})
        yield
        child = stack._supervisor.child(service)
        try:
            code = await asyncio.wait_for(child.ended(), PATIENCE_SECONDS)
        except TimeoutError:
            raise AssertionError(f"{service} never passed {failpoint}; its log is {child.log}") from None
        assert code == -signal.SIGKILL, f"{service} ended with code {code}; its log is {child.log}"
        note("killed at a failpoint", kills=1)
    finally:
        stack.supervise = True
        await stack.stop(service)


async def alive(stack: Stack, service: str, *, env: Mapping[str, str]) -> None:
    await stack.start(service, env=env)
    await stack.wait_healthy(service)


@asynccontextmanager
async def second_process(stack: Stack, service: str, *, env: Mapping[str, str] = {}) -> AsyncIterator[str]:
    """Start one more process of a service; its name. At the end its partitions go to the others at once: Kafka would
    keep them for it, unread, until its session ends."""
    name = process_name(service, 1)
    await stack.start(service, instance=1, env=env)
    try:
        yield name
    finally:
        await stack.stop(name)
        async with bootstrap.administrator(local_site(stack.state)) as admin:
            members = members_of(name, await static_members(admin, service))
            await remove_members(admin, service, members)
