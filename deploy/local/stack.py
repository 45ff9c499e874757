"""The local stack as an object: real Kafka, Postgres and S3, and the services, as children of this process.

Use it from the thread whose loop runs it: the kernel ends the children when that thread ends.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
from aiokafka.errors import KafkaError
from botocore.exceptions import BotoCoreError, ClientError

from deploy.bootstrap.site import BUCKET, Credentials
from deploy.local import environment, kafka, postgres, s3
from deploy.local.binaries import Binaries, binaries
from deploy.local.certificates import renew_authority
from deploy.local.environment import ASKED_BY_NODES, nodes_listener, process_name
from deploy.local.errors import StackError, end_of
from deploy.local.network import answers_ok
from deploy.local.settings import REPOSITORY
from deploy.local.site import site
from deploy.local.state import CERTIFICATES, State
from deploy.local.supervisor import Program, Supervisor
from schemas.topics import SERVICES
from shared.clock import utc_now
from shared.postgres.migrate import MigrationError, migrate
from shared.processes.ending import end, until
from shared.processes.identity import marked, recorded

ALL = SERVICES
READY_SECONDS = 120.0
SERVICE_GRACE_SECONDS = 15.0
DETACHED_GRACE_SECONDS = 10.0
PART_GRACE_SECONDS = 20.0
REFUSALS = (KafkaError, asyncpg.PostgresError, BotoCoreError, ClientError, OSError)
FATAL_SIGNALS = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}


@dataclass(frozen=True)
class Part:
    """A server that the services need: what to write before it starts, how to start it, what to put in it."""

    prepare: Callable[[State, Binaries], None]
    program: Callable[[State, Binaries], Program]
    set_up: Callable[[State, tuple[str, ...]], Awaitable[None]]


PARTS = {
    s3.NAME: Part(s3.prepare, s3.program, s3.set_up),
    kafka.NAME: Part(kafka.prepare, kafka.program, kafka.set_up),
    postgres.NAME: Part(postgres.prepare, postgres.program, postgres.set_up),
}


class Stack:
    def __init__(
        self,
        state: Path,
        tenants: Iterable[str] = ("demo",),
        services: Iterable[str] = ALL,
        report: Callable[[str], None] = lambda line: None,
        before_ready: Callable[["Stack"], Awaitable[None]] | None = None,
        tls: bool = False,
    ) -> None:
        """`before_ready` is called when all services are healthy for the first time; then the stack is ready.

        tls: every server speaks TLS alone, now and whenever this state folder is used again.
        """
        self.state = State(state)
        self.tenants = tuple(tenants)
        self.services = tuple(services)
        self._report = report
        self._before_ready = before_ready
        self._tls = tls
        self._supervisor = Supervisor(self.state, report)
        self._is_open = False

    @property
    def supervise(self) -> bool:
        """Whether what dies is started again."""
        return self._supervisor.restarting

    @supervise.setter
    def supervise(self, is_enabled: bool) -> None:
        self._supervisor.restarting = is_enabled

    @property
    def kafka_bootstrap(self) -> str:
        return site(self.state).kafka_bootstrap

    def kafka_password(self, user: str) -> str:
        return site(self.state).kafka_password(user)

    def postgres_dsn(self, role: str) -> str:
        """Return the DSN of a service, of `operator` (reads all) or of `postgres` (superuser)."""
        return site(self.state).postgres_dsn(role)

    @property
    def s3_endpoint(self) -> str:
        return site(self.state).s3_endpoint

    @property
    def s3_bucket(self) -> str:
        return BUCKET

    def s3_credentials(self, user: str) -> Credentials:
        """Return the credentials of a service, of `runner`, of `admin` or of `root`."""
        return site(self.state).s3_credentials(user)

    def service_env(self, name: str, instance: int = 0) -> dict[str, str]:
        return environment.service_env(self.state, name, self.tenants[0], instance)

    def operator_env(self) -> dict[str, str]:
        """What `<state>/env` exports."""
        return environment.operator_env(self.state, self.tenants[0])

    def url(self, name: str, path: str = "") -> str:
        """Return the address at which a service serves HTTP."""
        return f"{self.state.scheme}://127.0.0.1:{self.state.port(name)}{path}"

    @property
    def processes(self) -> tuple[str, ...]:
        """Names of services that were started and not stopped; `gateway-1` is the gateway's instance 1."""
        return tuple(name for name in self._supervisor.names() if name not in PARTS)

    def log(self, name: str) -> Path:
        return self.state.log(name)

    def pid(self, name: str) -> int:
        identity = self._supervisor.child(name).identity
        if identity is None:
            raise StackError(f"{name} does not run; its log is {self.log(name)}")
        return identity.pid

    async def up(self, services: Iterable[str] | None = None) -> None:
        """Start the parts if they are down, then these services (default: all), and wait for their health."""
        selected = self.services if services is None else tuple(services)
        opening = not self._is_open
        try:
            if opening:
                await self._open()
            if selected:
                await self._migrate(*selected)
            await _together(self._bring_service(name) for name in selected)
            if opening and selected and self._before_ready:
                await self._before_ready(self)
        except BaseException:
            if opening:
                await self.down()
            raise
        self._enter("ready")

    async def start(
        self,
        name: str,
        *,
        instance: int = 0,
        env: Mapping[str, str] | None = None,
        command: tuple[str, ...] | None = None,
    ) -> None:
        """Start one part or service without waiting for it; `env` is added to a service's own.

        command: what to run as the service in place of its own program.
        """
        if name in PARTS:
            self._supervisor.start(PARTS[name].program(self.state, await self._binaries()))
            return
        await self._migrate(name)
        program = self._program_of(name, instance, env)
        self._supervisor.start(replace(program, command=command) if command else program)

    async def wait_healthy(self, name: str, *, timeout_seconds: float = READY_SECONDS) -> None:
        """Raises StackError, with the end of the log, if it does not get there."""
        await self._supervisor.wait_ready(name, timeout_seconds=timeout_seconds)

    async def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal this one process; after a deadly signal, return when the supervisor has seen it die."""
        child = self._supervisor.child(name)
        if child.identity is None or not child.is_running:
            raise StackError(f"{name} does not run; its log is {self.log(name)}")
        deaths = child.deaths
        child.identity.signal_alone(number)
        if number in FATAL_SIGNALS and not await until(lambda: child.deaths > deaths, READY_SECONDS):
            raise StackError(
                f"{name}, pid {child.identity.pid}, ignores {number.name}; log: {self.log(name)}"
            )

    async def stop(self, name: str) -> None:
        """End one part or service and keep it down until `start`."""
        await self._supervisor.stop(name, grace_seconds=SERVICE_GRACE_SECONDS)

    async def down(self) -> None:
        """End everything: services, then runners and replicas, then the parts they talk to."""
        if not self._is_open:
            return
        self._enter("stopping")
        running = self._supervisor.names()
        services = [name for name in running if name not in PARTS]
        await self._supervisor.stop(*services, grace_seconds=SERVICE_GRACE_SECONDS)
        await _end_detached(self.state)
        await self._supervisor.stop(*PARTS, grace_seconds=PART_GRACE_SECONDS)
        await _end_marked(self.state)
        self._enter("down")
        self.state.release()
        self._is_open = False

    async def _open(self) -> None:
        """Take the state folder and start the three parts in it."""
        self.state.prepare()
        self.state.acquire()
        self._is_open = True
        await _end_left_behind(self.state)
        self._enter("starting")
        for_nodes = [nodes_listener(name) for name in self.services if name in ASKED_BY_NODES]
        for port in ("kafka", "kafka-controller", "postgres", "s3", *self.services, *for_nodes):
            self.state.require_port(port)
        if self._tls or self.state.ca_file:
            renew_authority(self.state.root / CERTIFICATES, now=utc_now())
        parts = await self._binaries()
        environment.write_files(self.state, self.tenants)
        await _together(self._bring_part(name, part, parts) for name, part in PARTS.items())

    async def _binaries(self) -> Binaries:
        return await asyncio.to_thread(binaries, tls=self.state.ca_file is not None)

    async def _bring_part(self, name: str, part: Part, parts: Binaries) -> None:
        began = time.monotonic()
        await asyncio.to_thread(part.prepare, self.state, parts)
        self._supervisor.start(part.program(self.state, parts))
        await self.wait_healthy(name)
        try:
            await part.set_up(self.state, self.tenants)
        except REFUSALS as error:
            raise StackError(
                f"{name} runs but could not be set up: {error}; its log {end_of(self.log(name))}"
            ) from error
        self._report(f"{name} ready on port {self.state.port(name)} after {time.monotonic() - began:.1f} s")

    async def _bring_service(self, name: str) -> None:
        began = time.monotonic()
        self._supervisor.start(self._program_of(name))
        await self.wait_healthy(name)
        self._report(f"{name} healthy on port {self.state.port(name)} after {time.monotonic() - began:.1f} s")

    async def _migrate(self, *services: str) -> None:
        for service in services:
            try:
                await migrate(service, self.postgres_dsn(service), ca_file=self.state.ca_file)
            except (MigrationError, asyncpg.PostgresError, OSError) as error:
                raise StackError(f"the migrations of {service} failed: {error}") from error

    def _program_of(self, service: str, instance: int = 0, env: Mapping[str, str] | None = None) -> Program:
        name = process_name(service, instance)

        async def is_ready() -> bool:
            return await answers_ok(self.state.port(name), "/healthz", ca_file=self.state.ca_file)

        settings = {**self.service_env(service, instance), "PYTHONUNBUFFERED": "1", **(env or {})}
        command = (sys.executable, "-m", f"services.{service}.app")
        return Program(name, command, is_ready, env=settings, cwd=REPOSITORY)

    def _enter(self, phase: str) -> None:
        self._supervisor.phase = phase
        self._supervisor.record()


async def end_leftovers(state: State) -> None:
    """End all that a killed supervisor left: services, parts, runners, replicas. Raises AlreadyRunning."""
    state.acquire()
    await _end_left_behind(state)
    await _end_detached(state)
    await _end_marked(state)
    state.record("down", {})
    state.release()


async def _end_left_behind(state: State) -> None:
    await end(state.left_behind(), grace_seconds=SERVICE_GRACE_SECONDS, first=signal.SIGINT)


async def _end_detached(state: State) -> None:
    """End all sessions of runners and replicas: an engine that gave itself another title carries no mark any more."""
    leaders = [leader for name in ("nodes", "replicas") for leader in recorded(state.root / name)]
    processes = [process for leader in leaders for process in (leader, *leader.session())]
    await end(processes, grace_seconds=DETACHED_GRACE_SECONDS, first=signal.SIGTERM)


async def _end_marked(state: State) -> None:
    await end(list(marked(state.mark)), grace_seconds=DETACHED_GRACE_SECONDS, first=signal.SIGTERM)


async def _together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at once; the first failure cancels the rest and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in work:
                group.create_task(coroutine)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
