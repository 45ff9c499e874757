"""Postgres is killed and stays down, while services that need it say so over HTTP and live on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from deploy.local.network import answers_ok
from deploy.local.stack import Stack
from tests.waiting import until

METRIC = "postgres_away_seconds"


@asynccontextmanager
async def postgres_down(stack: Stack) -> AsyncIterator[None]:
    await stack.kill("postgres")
    await stack.stop("postgres")
    try:
        yield
    finally:
        await stack.start("postgres")
        await stack.wait_healthy("postgres")


async def until_missed(stack: Stack, *services: str, for_seconds: float) -> None:
    """Each of the services, as its metric says; meanwhile it is alive and not ready."""
    for service in services:
        await until(
            lambda service=service: _is_missed(stack, service, for_seconds),
            f"{service} to miss Postgres",
            seconds=2 * for_seconds + 60,
        )
        port = stack.state.port(service)
        assert await answers_ok(port, "/livez")
        assert not await answers_ok(port, "/healthz")


def deaths_of(stack: Stack, *services: str) -> dict[str, int]:
    return {service: stack._supervisor.child(service).deaths for service in services}


async def metric(stack: Stack, service: str, name: str) -> float:
    """The sum of a metric over its labels."""
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"http://127.0.0.1:{stack.state.port(service)}/metrics/")).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}{{"))


async def _is_missed(stack: Stack, service: str, seconds: float) -> bool:
    return await metric(stack, service, METRIC) >= seconds
