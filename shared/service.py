"""One service process with its consumer, relay, timers, tasks and loops, its start, stop and health.

The process is crash-only: an error that a loop cannot recover from ends it, and start-up is the recovery path.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError
from faststream.kafka import KafkaBroker

from schemas.base import Message
from schemas.parked import DropParked, ReplayParked
from schemas.topics import LISTENS, OF_EVERY_TENANT, READERS, TOPICS, Topic, topic_carrying
from shared import loops
from shared.failpoints import failpoint
from shared.health import Answer, Probe, Route, asgi_app
from shared.log import configure_logging, get_logger
from shared.loops import Loop
from shared.messaging.consumer import Consumer, Handler
from shared.messaging.due import Due
from shared.messaging.followers import Followers
from shared.messaging.group_members import member_name, remove_former_members
from shared.messaging.handlers import require_handlers
from shared.messaging.held_messages import measure_held_messages
from shared.messaging.kafka import (
    KafkaFailed,
    kafka_broker,
    kafka_producer,
    kafka_subscriber,
    record_of_kafka,
)
from shared.messaging.kafka_health import (
    ClientUnresponsive,
    await_through_outage,
    kafka_answers,
    wait_until_available,
)
from shared.messaging.lag import STALLED_AFTER_SECONDS, Contact, Lag
from shared.messaging.leader import Leader, require_lead
from shared.messaging.lease import Lease
from shared.messaging.missing_offsets import MissingOffsets
from shared.messaging.parking import ParkedCommands, ReplayTask
from shared.messaging.relay import Relay
from shared.messaging.retention import Pruning, prune, prune_kernel
from shared.messaging.tasks import TaskKind, Tasks, report_nothing
from shared.messaging.timers import TimerHandler, Timers
from shared.messaging.topic_ids import TopicIds
from shared.messaging.turns import TenantLimit, Turns
from shared.messaging.unit import Task, Unit, current_correlation
from shared.messaging.waiting import WaitingMessages
from shared.postgres.database import Database
from shared.record import Record
from shared.retry import A_DAY, RetryPolicy
from shared.server import serve
from shared.settings import ServiceSettings
from shared.startup import Startup
from shared.storage.objects import ObjectStore
from shared.telemetry.export import configure_telemetry
from shared.telemetry.metrics import PAUSED_TOPICS, POSTGRES_AWAY

log = get_logger(__name__)

COMMIT_TIMEOUT_SECONDS = 10.0
MEASURE_TIMEOUT_SECONDS = 30.0
READ_ALL_SECONDS = 3.0
RECORDS_OF_A_POLL = 100
POLL_MILLISECONDS = 500
JOIN_SECONDS = 10.0
"""Time without Kafka after which a starting process serves its HTTP routes anyway."""
TOPICS_SECONDS = 30.0
TOPICS_POLL_SECONDS = 1.0
PRUNE_EVERY = timedelta(hours=1)
CLOCK_EVERY = timedelta(minutes=1)
MEASURE_EVERY = timedelta(seconds=5)


class WrongTopics(RuntimeError):
    """Kafka answers, but topics of this service are missing or have another number of partitions."""


Result = TypeVar("Result")


class Service:
    """A service. Register handlers with `on…`, then `run()`; `name` is also the Kafka user, group, role and schema.

    It listens to the topics that it has handlers for. A service of schemas.topics.READERS has none, and neither group
    nor relay, nor a right to them.
    """

    def __init__(self, name: str, settings: ServiceSettings) -> None:
        self.name = name
        self.settings = settings
        self._listens = name not in READERS
        self._handled: dict[str, set[str]] = {}
        """Maps a topic to the types that are handled."""
        timing = settings.timing
        self.database = Database.from_settings(settings, application=name)
        self._owner = f"{name}-{settings.instance}"
        self._broker: KafkaBroker = kafka_broker(settings, client_id=self._owner)
        self._consumer = Consumer(
            name,
            self.database,
            wake=self.wake,
            has_read_all=self._has_read_all,
            kept_rows=settings.parked_rows_with_bytes,
        )
        self._tenants_limit = TenantLimit(settings.tenant_records_per_day)
        self._waiting_messages = WaitingMessages(self.database, self._consumer, service=name)
        self._followers = Followers(name, self.database, self._consumer, wake=self.wake)
        self._timers = Timers(self.database, service=name, wake=self.wake)
        self._tasks = Tasks(
            self.database,
            service=name,
            owner=self._owner,
            ttl=timing.lease_ttl,
            renew=timing.lease_renew,
            wake=self.wake,
        )
        self._relay = Relay(
            self.database,
            self._make_producer,
            Lease(self.database, "relay", owner=self._owner, ttl=timing.lease_ttl),
            service=name,
            renew_seconds=timing.lease_renew.total_seconds(),
            kafka_answers=self._kafka_answers,
        )
        self._leader = Leader(
            Lease(self.database, "leader", owner=self._owner, ttl=timing.lease_ttl),
            ttl=timing.lease_ttl,
            renew=timing.lease_renew,
        )
        self._lag = Lag(settings, group=name)
        self._contact = Contact()
        self.probe = Probe(postgres_away_seconds=lambda: self.database.away_seconds)
        POSTGRES_AWAY.labels(name).set_function(lambda: self.database.away_seconds)
        self._joined = asyncio.Event()
        self._stopping = False
        self.is_ending = False
        """Whether answers over HTTP are to end now that would last."""
        self._idle_since: float | None = time.monotonic()
        """Monotonic time since which no records are consumed, in seconds; None while some are."""
        self._loops: list[tuple[str, Loop]] = []
        self._prunings: list[Pruning] = []
        self._routes: dict[str, Route] = {}
        self._start_hooks: list[Loop] = []
        self._stop_hooks: list[Loop] = []
        self._wake_events = [each.wake_event for each in (self._relay, self._tasks, self._waiting_messages)]
        if self._listens:
            self._obey_parked_commands()

    @cached_property
    def objects(self) -> ObjectStore:
        """The bucket. boto3 is loaded at its first use: it takes a third of a start, and most services need none."""
        from shared.storage.s3 import S3ObjectStore

        return S3ObjectStore.from_settings(self.settings)

    def on(self, message: type[Message], handler: Handler, *, topic: Topic | None = None) -> None:
        """Handle a type, and so listen to its topic, which is named where several carry it (`CommandRefused`).

        What the service handles is declared here alone: its rights and documents follow (`make schemas`).
        """
        name = (topic or topic_carrying(message)).name
        if topic and message not in topic.messages:
            raise LookupError(f"topic of {message.type}: found {name}, which does not carry it")
        self._handle(name, message, handler)

    def on_every_event(self, handler: Handler) -> None:
        """Handle every fact about any aggregate, whatever types are added."""
        for topic in TOPICS:
            if topic.is_event_stream:
                for message in topic.messages:
                    self.on(message, handler, topic=topic)

    def handled(self) -> dict[str, tuple[str, ...]]:
        """Return the types that have a handler, by topic."""
        return {topic: tuple(sorted(types)) for topic, types in self._handled.items()}

    def on_tenant_command(self, message: type[Message], handler: Handler) -> None:
        """Handle a type on `tenant.<t>.commands` of every tenant."""
        self._handle(OF_EVERY_TENANT, message, handler)

    def _handle(self, topic: str, message: type[Message], handler: Handler) -> None:
        self._consumer.on(topic, message, handler)
        self._handled.setdefault(topic, set()).add(message.type)

    def on_timer(self, payload: type[Any], handler: TimerHandler) -> None:
        self._timers.on(payload, handler)

    def on_task(
        self,
        payload: type[Task],
        *,
        work: Callable[[Any], Awaitable[Any]],
        done: Callable[[Any, Any, Unit], Awaitable[None]],
        failed: Callable[[Any, Exception, Unit], Awaitable[None]],
        attempts: int = 3,
        concurrency: int = 1,
        waits: Callable[[Any, str, Unit], Awaitable[None]] = report_nothing,
        retry_policy: RetryPolicy = A_DAY,
    ) -> None:
        """Register a kind of task. `attempts` is the number of failures by its own errors after which it has failed.

        An unavailable dependency is waited for as `retry_policy` says; `waits` gets its name once per absence.
        """
        self._tasks.on(TaskKind(payload, work, done, failed, attempts, concurrency, waits, retry_policy))

    def every(self, period: timedelta, function: Loop, *, singleton: bool = False) -> None:
        """Call the function once per period; while Postgres is unavailable it waits, any other error is logged.

        With `singleton`, only the process that leads calls it, however many processes the service has.
        """
        if singleton:
            self._leader.loops.append(lambda: loops.repeat(period, function))
        else:
            self._loops.append((function.__qualname__, lambda: loops.repeat(period, function)))

    def prune(self, query: str, *, older_than: timedelta) -> None:
        """Delete old rows of one of the service's tables once an hour; Pruning describes `query`."""
        self._prunings.append(Pruning(query, older_than))

    def on_post(self, path: str, answer: Answer, *, max_bytes: int) -> None:
        """Answer POST requests to this path, beside the routes that every service has."""
        self._routes[path] = Route(answer, max_bytes)

    def on_lead(self, function: Loop) -> None:
        """Call the function when this process begins to lead, before its singleton loops run."""
        self._leader.begin_hooks.append(function)

    def on_lead_end(self, function: Loop) -> None:
        """Call the function when another process may lead from now on, and before this one stops."""
        self._leader.end_hooks.append(function)

    def on_start(self, function: Loop) -> None:
        """Call the function once the database is open, before the first message."""
        self._start_hooks.append(function)

    def on_stop(self, function: Loop) -> None:
        self._stop_hooks.append(function)

    @asynccontextmanager
    async def unit(self, *, correlation_id: str = "") -> AsyncIterator[Unit]:
        """Open a transaction outside any message, for loops, HTTP requests and the work of tasks.

        In a singleton loop it raises LeaseLost if this process does not lead any more.
        """
        async with self.database.transaction() as conn:
            await require_lead(conn)
            unit = Unit(conn, self.name, self.clock(), correlation_id=correlation_id or current_correlation())
            yield unit
        if unit.outgoing:
            self.wake()

    def clock(self) -> datetime:
        """Return the current time of Postgres."""
        return self.database.now()

    async def caught_up(self, topic: str) -> None:
        """Return once the group has committed past the end that the topic has now."""
        await self._lag.caught_up(topic)
        self._contact.answered(self.clock())

    def listening_since(self) -> datetime:
        """Return since when this process could read from Kafka without a gap; the current time if it cannot."""
        return self._contact.since(self.clock())

    async def with_timeout(self, work: Awaitable[Result], *, seconds: float) -> Result:
        """Return the result of `work` on Kafka. Raises ClientUnresponsive if Kafka answers and it does not end."""
        return await await_through_outage(work, self._kafka_answers, seconds=seconds)

    async def _has_read_all(self) -> bool:
        """Return whether the group catches up within READ_ALL_SECONDS; False if Kafka cannot be asked."""
        try:
            async with asyncio.timeout(READ_ALL_SECONDS):
                await self._lag.caught_up_everywhere()
        except (KafkaFailed, OSError, TimeoutError):
            return False
        return True

    def wake(self) -> None:
        """Let the relay, the tasks, the waiting messages and others look for work at once, after a commit."""
        for event in self._wake_events:
            event.set()

    def on_wake(self, event: asyncio.Event) -> None:
        """Set this event too after each commit, and when answers are to end that would last."""
        self._wake_events.append(event)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        configure_logging(self.name)
        configure_telemetry(self.name)
        nodes = self.settings.listener_of_nodes
        app = asgi_app(self.probe, lifespan=self.running, routes=self._routes, nodes=nodes)
        serve(app, self.settings, on_stop=self._end_answers)

    def _end_answers(self) -> None:
        self.is_ending = True
        self.wake()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run everything between start and stop, for a server that has its own routes as well.

        It starts even while Postgres or Kafka is unavailable; until Postgres answers, `database` raises NotConnected.
        """
        require_handlers(self.name, self._handled)
        if self._listens:
            self._subscribe()
        startup = Startup(self.database, self._start_hooks)
        await startup.wait_until_done_or_unavailable()
        running = [loops.start(name, partial(startup.then, loop)) for name, loop in self._all_loops()]
        consuming = loops.start("consume", partial(startup.then, self._join_and_consume))
        joined = asyncio.create_task(self._joined.wait())
        if startup.is_done:
            await asyncio.wait({joined, consuming}, timeout=JOIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        try:
            yield
        finally:
            self.probe.ready = False
            await loops.cancel([joined])
            await self._stop_consuming(consuming)
            if self._listens:
                await self._broker.stop()
            await loops.cancel(running)
            await startup.cancel()
            for hook in self._stop_hooks if startup.is_done else ():
                await hook()
            await self._lag.close()
            await self.database.close()
            log.info("service stopped")

    async def _join_and_consume(self) -> None:
        await self._join()
        self._joined.set()
        if self._listens:
            await self._consume()

    async def _stop_consuming(self, consuming: asyncio.Task[None]) -> None:
        """Let the records in hand be finished, for as long as a rebalance would wait for them."""
        self._stopping = True
        if self._joined.is_set():
            await asyncio.wait({consuming}, timeout=self.settings.timing.revoke_wait.total_seconds())
        await loops.cancel([consuming])

    async def _join(self) -> None:
        """Join the group once Kafka is available."""
        await wait_until_available(self._kafka_answers)
        await self._require_topics()
        if self._listens:
            admin = await self._lag.administrator()
            await remove_former_members(admin, self.name, process=self._owner, joins_as=self._member)
            timing = self.settings.timing
            limit = timing.rebalance_timeout + timing.session_timeout
            await self.with_timeout(self._broker.start(), seconds=limit.total_seconds())
        self.probe.ready = True
        log.info("service started", owner=self._owner)

    async def _require_topics(self) -> None:
        """Raise WrongTopics if the topics are not set up within TOPICS_SECONDS."""
        topics = [*LISTENS[self.name], *(topic for topic in TOPICS if self.name in topic.writers)]
        until = time.monotonic() + TOPICS_SECONDS
        while topics and (problems := await self._wrong_topics(topics)):
            if time.monotonic() > until:
                raise WrongTopics("; ".join(problems))
            log.warning("topics are not set up yet", problems=problems)
            await asyncio.sleep(TOPICS_POLL_SECONDS)

    async def _wrong_topics(self, topics: Sequence[Topic]) -> list[str]:
        return await self.with_timeout(self._lag.wrong_topics(topics), seconds=MEASURE_TIMEOUT_SECONDS)

    async def _kafka_answers(self) -> bool:
        return await kafka_answers(self.settings)

    def _make_producer(self) -> AIOKafkaProducer:
        settings = self.settings
        return kafka_producer(
            settings.kafka_bootstrap,
            settings.kafka_username,
            settings.kafka_password.get_secret_value(),
            client_id=f"{self._owner}-relay",
            ca_file=settings.tls.ca_file,
        )

    def _all_loops(self) -> list[tuple[str, Loop]]:
        due = Due(
            self.database,
            relay=self._relay,
            waiting=self._waiting_messages,
            followers=self._followers,
            tasks=self._tasks,
            timers=self._timers,
        )
        of_the_group = [
            ("relay", self._relay.run),
            ("waiting", self._waiting_messages.run),
            ("followers of parked messages", self._followers.run),
            ("measure", lambda: loops.repeat(MEASURE_EVERY, self._measure)),
        ]
        return [
            *(of_the_group if self._listens else []),
            ("due", due.run),
            ("timers", self._timers.run),
            ("tasks", self._tasks.run),
            ("measure tasks", lambda: loops.repeat(MEASURE_EVERY, self._tasks.measure)),
            ("clock", lambda: loops.repeat(CLOCK_EVERY, self.database.read_clock)),
            ("retention", lambda: loops.repeat(PRUNE_EVERY, self._prune)),
            ("singleton loops", self._leader.run),
            *self._loops,
        ]

    def _obey_parked_commands(self) -> None:
        commands = ParkedCommands(self.name, self.database, self._consumer)
        self.on(ReplayParked, commands.replay)
        self.on(DropParked, commands.drop)
        self.on_task(ReplayTask, work=commands.work, done=commands.done, failed=commands.failed)

    def _subscribe(self) -> None:
        topics = sorted(self._handled.keys() - {OF_EVERY_TENANT})
        self._member = member_name(self._owner, topics)
        self._subscriber = kafka_subscriber(
            self._broker,
            topics,
            of_every_tenant=OF_EVERY_TENANT in self._handled,
            group=self.name,
            member=self._member,
            timing=self.settings.timing,
        )

    async def _consume(self) -> None:
        """Consume until stopped; any error ends the process, so that reading resumes at the committed offset."""
        consumer: Any = self._subscriber.consumer
        missing = MissingOffsets(self._lag.ids, group=self.name)
        turns = Turns(consumer, limit=self._tenants_limit, missing=missing)
        while not self._stopping:
            if missing.partitions:
                await self._read_from_start(missing, consumer)
            if self._lag.ids.strange:
                await self._read_from_start(self._lag.ids, consumer)
            raw = await turns.take(wait_ms=POLL_MILLISECONDS, max_records=RECORDS_OF_A_POLL)
            if raw:
                await self._consume_all(consumer, [record_of_kafka(each) for each in raw])

    async def _read_from_start(self, which: MissingOffsets | TopicIds, consumer: Any) -> None:
        try:
            await self.with_timeout(which.read_from_start(consumer), seconds=COMMIT_TIMEOUT_SECONDS)
        except KafkaFailed as error:
            log.warning("partitions are not read yet", error=f"{type(error).__name__}: {error}")

    async def _consume_all(self, consumer: Any, records: list[Record]) -> None:
        self._idle_since = None
        try:
            await self._consumer.consume_all(records)
            failpoint("offset.commit.before")
            if offsets := self._lag.ids.offsets(records):
                await self.with_timeout(consumer.commit(offsets), seconds=COMMIT_TIMEOUT_SECONDS)
            failpoint("offset.commit.after")
        except (CommitFailedError, IllegalStateError):
            log.info("partition moved before the offset was committed", location=records[0].location)
        except Exception as error:
            loops.exit_process(f"consume {records[0].location} to {records[-1].location}", error)
        finally:
            self._idle_since = time.monotonic()

    async def _prune(self) -> None:
        await prune_kernel(self.database, self.settings.timing)
        for pruning in self._prunings:
            await prune(self.database, pruning)

    async def _measure(self) -> None:
        self.probe.outbox_age_seconds = await self._relay.measure()
        self.probe.parked_blocking = await measure_held_messages(self.database, self.name, now=self.clock())
        stalled = await self.with_timeout(self._lag.measure(), seconds=MEASURE_TIMEOUT_SECONDS)
        self._contact.answered(self.clock())
        PAUSED_TOPICS.labels(self.name).set(len({each.topic for each in self._tenants_limit.paused}))
        self.probe.missing_topics = self._lag.missing
        self.probe.stalled_topics = sorted({each.topic for each in stalled})
        self._require_progress(stalled)

    def _require_progress(self, stalled: Sequence[TopicPartition]) -> None:
        """Raise ClientUnresponsive if partitions of this process have records and none is handed over."""
        is_busy = self._idle_since is None or time.monotonic() - self._idle_since < STALLED_AFTER_SECONDS
        if is_busy or not self.probe.ready:
            return
        ours = self._subscriber.consumer.assignment()
        if left := [f"{each.topic}/{each.partition}" for each in stalled if each in ours or not ours]:
            raise ClientUnresponsive(
                f"records lie for a minute in {', '.join(left)}, and Kafka's client hands over none"
            )
