"""Proxies between the services and the three servers of a stack, so that every line can be made bad."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from deploy.local import kafka
from deploy.local.binaries import binaries
from deploy.local.stack import Stack
from deploy.local.state import LOOPBACK
from tests.chaos.proxies import TcpProxy
from tests.chaos.s3_proxy import S3Proxy

SERVER_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


@dataclass(frozen=True)
class Fronts:
    stack: Stack
    kafka: TcpProxy
    postgres: TcpProxy
    s3: S3Proxy

    def env(self, service: str) -> dict[str, str]:
        """What makes the service take the proxies for the servers; add it to its own environment."""
        return self.settings(service.upper(), role=service)

    def settings(self, prefix: str, *, role: str) -> dict[str, str]:
        """The same for another program, for example the node runners with the prefix `RUNNER`."""
        dsn = self.stack.postgres_dsn(role).replace(
            f":{self.stack.state.port('postgres')}/", f":{self.postgres.port}/"
        )
        return {
            f"{prefix}_KAFKA_BOOTSTRAP": f"{LOOPBACK}:{self.kafka.port}",
            f"{prefix}_POSTGRES_DSN": dsn,
            f"{prefix}_S3_ENDPOINT": f"http://{LOOPBACK}:{self.s3.port}",
        }


@asynccontextmanager
async def fronts(stack: Stack, *, seed: int) -> AsyncIterator[Fronts]:
    """The stack is up. Who is not told of the proxies, as a checker, has a good line all the time."""
    state = stack.state
    async with (
        TcpProxy(state.port("kafka-proxied")) as kafka_line,
        TcpProxy(state.port("postgres")) as postgres_line,
        S3Proxy(state.port("s3"), seed=seed) as s3_line,
    ):
        await _listen_behind(stack, kafka_line.port)
        yield Fronts(stack, kafka_line, postgres_line, s3_line)


async def _listen_behind(stack: Stack, proxy_port: int) -> None:
    """Start Kafka again with one more listener, which tells its clients the proxy's port."""
    state = stack.state
    plain = f"BROKER://{LOOPBACK}:{state.port('kafka')}"
    changed = {
        "listeners": f"{plain},PROXIED://{LOOPBACK}:{state.port('kafka-proxied')},"
        f"CONTROLLER://{LOOPBACK}:{state.port('kafka-controller')}",
        "advertised.listeners": f"{plain},PROXIED://{LOOPBACK}:{proxy_port}",
        "listener.security.protocol.map": "BROKER:SASL_PLAINTEXT,PROXIED:SASL_PLAINTEXT,"
        "CONTROLLER:SASL_PLAINTEXT",
        "listener.name.proxied.scram-sha-512.sasl.jaas.config": SERVER_LOGIN,
    }
    program = kafka.program(state, binaries())
    overrides = [word for name, value in changed.items() for word in ("--override", f"{name}={value}")]
    await stack.stop(kafka.NAME)
    stack._supervisor.start(replace(program, command=(*program.command, *overrides)))
    await stack.wait_healthy(kafka.NAME)
