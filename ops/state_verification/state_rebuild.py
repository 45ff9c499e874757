"""The service's own handlers on a scratch schema, each at the time at which it ran."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from ops.state_verification.difference import Difference, Table, same, text
from ops.state_verification.timeline import Step
from schemas.base import CommandRefused
from shared.errors import ParentUnknown, Refused
from shared.messaging.delivery import Delivery, refusal_of, require_obeyed
from shared.messaging.unit import Unit
from shared.postgres.database import Connection, Database
from shared.service import Service, Wiring

DUE = (
    "SELECT id, type, payload, fires_at, correlation_id FROM timer WHERE fires_at <= $1 ORDER BY fires_at, id"
)
FIRED = "DELETE FROM timer WHERE id = $1"
LAST_OUTBOX = "SELECT coalesce(max(id), 0) FROM outbox"
EMITTED = "SELECT topic, aggregate_id, type FROM outbox WHERE id > $1"

Emitted = Counter[tuple[str, str, str]]


class NotThis(Exception):
    """What was tried did something else than what happened: it is taken back."""


class ScratchDatabase(Database):
    """One connection, so that whatever is done on it can be taken back as a whole."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._away_since = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self._conn.transaction():
            yield self._conn

    async def fetch(self, query: str, *args: object) -> list[Any]:
        return list(await self._conn.fetch(query, *args))

    async def fetchrow(self, query: str, *args: object) -> Any:
        return await self._conn.fetchrow(query, *args)

    async def fetchval(self, query: str, *args: object) -> Any:
        return await self._conn.fetchval(query, *args)

    async def execute(self, query: str, *args: object) -> str:
        return str(await self._conn.execute(query, *args))


class StateRebuild:
    """Takes the steps one after another; `differences` has those that could not be done again."""

    def __init__(self, service: Service, conn: Connection, pending: Table) -> None:
        self._service = service
        self._wiring: Wiring = service.wiring
        self._conn = conn
        self._pending = pending
        """Timers that have not fired in the live service."""
        self.differences: list[Difference] = []
        service.database = ScratchDatabase(conn)

    async def take(self, step: Step) -> None:
        self._service.clock = lambda: step.at
        if step.message is not None:
            await self._hand_over(step, step.message)
        elif not await self._by_timer(step) and not await self._by_loop(step):
            self._say(step, "nothing that is due makes it")

    async def fire_rest(self, now: datetime) -> None:
        """Timers that fired without news: they may have counted a row's revision on."""
        for row in await self._due(now):
            self._service.clock = lambda at=row["fires_at"]: at  # type: ignore[misc]
            await self._try(Counter(), row["fires_at"], lambda row=row: self._fire(row, row["fires_at"]))  # type: ignore[misc]

    async def _hand_over(self, step: Step, message: Delivery) -> None:
        handler = self._wiring.find_handler(message)
        if handler is None:
            return
        try:
            require_obeyed(message, now=step.at)
            async with self._conn.transaction():
                await handler(message.message, self._unit(step.at, message))
        except Refused as refused:
            await self._emit(step, message, refusal_of(message, refused))
        except ParentUnknown as unknown:
            await self._refuse_late(step, message, unknown)
        except Exception as error:  # noqa: BLE001  whatever a handler raises is what there is to tell
            self._say(step, f"{type(error).__name__}: {error}")

    async def _refuse_late(self, step: Step, message: Delivery, unknown: ParentUnknown) -> None:
        """It had waited until its time was over."""
        for event in step.events:
            if isinstance(event.message, CommandRefused):
                await self._emit(step, message, event.message)
                return
        self._say(step, f"it waits: {unknown}")

    async def _emit(self, step: Step, cause: Delivery, refusal: CommandRefused) -> None:
        async with self._conn.transaction():
            await self._unit(step.at, cause).emit(refusal)

    async def _by_timer(self, step: Step) -> bool:
        keys = {event.envelope.key for event in step.events}
        due = await self._due(step.at)
        due.sort(key=lambda row: keys.isdisjoint(map(str, row["payload"].values())))
        for row in due:
            if await self._try(_expected(step), step.at, lambda row=row: self._fire(row, step.at)):  # type: ignore[misc]
                return True
        return False

    async def _by_loop(self, step: Step) -> bool:
        for loop in self._wiring.loops:
            if await self._try(_expected(step), step.at, loop):
                return True
        return False

    async def _due(self, now: datetime) -> list[Any]:
        """Without those that are still to fire in the live service."""
        pending, due = list(self._pending.rows), []
        for row in await self._conn.fetch(DUE, now):
            timer = {name: row[name] for name in ("type", "payload", "fires_at")}
            twin = next((each for each in pending if same(dict(each), timer)), None)
            if twin is None:
                due.append(row)
            else:
                pending.remove(twin)
        return due

    async def _fire(self, row: Any, now: datetime) -> None:
        payload_type, handler = self._wiring.timers[row["type"]]
        unit = Unit(self._conn, self._service.name, now, correlation_id=row["correlation_id"])
        await self._conn.execute(FIRED, row["id"])
        await handler(payload_type.model_validate(row["payload"]), unit)

    async def _try(self, expected: Emitted, now: datetime, what: Callable[[], Any]) -> bool:
        """Do it; take it back unless it emits exactly this."""
        before = await self._conn.fetchval(LAST_OUTBOX)
        try:
            async with self._conn.transaction():
                await what()
                await self._require(expected, before)
        except NotThis:
            return False
        return True

    async def _require(self, expected: Emitted, before: int) -> None:
        rows = await self._conn.fetch(EMITTED, before)
        if Counter((row["topic"], row["aggregate_id"], row["type"]) for row in rows) != expected:
            raise NotThis

    def _unit(self, now: datetime, cause: Delivery) -> Unit:
        envelope = cause.envelope
        correlation = envelope.correlation_id or envelope.id
        payload = cause.record.value or b""
        return Unit(self._conn, self._service.name, now, envelope, cause.topic.name, correlation, payload)

    def _say(self, step: Step, why: str) -> None:
        about = [step.message] if step.message else list(step.events)
        for each in about:
            self.differences.append(
                Difference("message", each.record.place, each.message.type, "handled", why)
            )


def _expected(step: Step) -> Emitted:
    return Counter((event.topic.name, event.envelope.key, event.message.type) for event in step.events)


def events_differ(own: Iterable[Delivery], rebuilt: Iterable[Any]) -> list[Difference]:
    """Live events against the scratch outbox, by event stream and number; ids and times of sending aside."""
    rebuilt_rows = {(row["topic"], row["aggregate_id"], row["sequence"]): row for row in rebuilt}
    differences = []
    for event in own:
        key = event.topic.name, event.envelope.key, event.envelope.sequence
        row = rebuilt_rows.pop(key, None)
        key_text = f"{key[0]} {key[1]} {key[2]}"
        if row is None:
            differences.append(Difference("event", key_text, "", event.message.type, "missing"))
        elif row["type"] != event.message.type:
            differences.append(Difference("event", key_text, "type", event.message.type, row["type"]))
        else:
            again = type(event.message).model_validate_json(row["value"]).model_dump(mode="json")
            differences += [
                Difference("event", key_text, name, text(value), text(again[name]))
                for name, value in event.message.model_dump(mode="json").items()
                if not same(value, again[name])
            ]
    differences += [
        Difference("event", f"{topic} {key} {number}", "", "missing", row["type"])
        for (topic, key, number), row in rebuilt_rows.items()
    ]
    return differences
