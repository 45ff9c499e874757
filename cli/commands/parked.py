"""retune parked: messages set aside for a person."""

import asyncio
import base64
import json
from typing import Annotated

import typer

from cli import kafka_commands
from cli.changes import Changes
from cli.commands.context import connection
from cli.output import show, show_table
from ops.errors import RefusedByPlatform
from schemas.parked import DropParked, MessageParked, ParkedResolved, ReplayParked
from schemas.topics import PARKED_TOPICS
from shared.messaging.delivery import Delivery
from shared.messaging.reader import TopicReader

app = typer.Typer(add_completion=False, help="Messages set aside for a person.", no_args_is_help=True)

ANSWER_SECONDS = 30.0


@app.command("list")
def list_parked(service: str | None = None) -> None:
    """List what is parked and not resolved."""
    messages = asyncio.run(_open(service))
    rows = [
        (m.service, m.parked_id, m.reason, f"{m.topic}/{m.partition}@{m.offset}", m.detail) for m in messages
    ]
    values = [message.model_dump(mode="json") for message in messages]
    show_table(values, ("service", "id", "reason", "record", "detail"), rows)


@app.command("show")
def show_parked(service: str, parked_id: int) -> None:
    """Show one message with its value."""
    message = _find(service, parked_id)
    value = base64.b64decode(message.value_base64).decode("utf-8", "replace")
    text = json.dumps(message.model_dump(mode="json", exclude={"value_base64"}), indent=1)
    show(message.model_dump(mode="json"), f"{text}\n{value}")


@app.command(cls=Changes)
def replay(service: str, parked_id: int) -> None:
    """Hand a message to its service again."""
    _find(service, parked_id)
    command = ReplayParked(service=service, parked_id=parked_id)
    fact = kafka_commands.command(connection(), command, until=[ParkedResolved], seconds=ANSWER_SECONDS)
    assert isinstance(fact, ParkedResolved)
    if fact.state == "parked":
        raise RefusedByPlatform(f"{service} {parked_id}: {fact.reason}")
    show(fact.model_dump(mode="json"), f"{service} {parked_id}: replayed")


@app.command(cls=Changes)
def drop(service: str, parked_id: int, reason: Annotated[str, typer.Option(help="Kept with it.")]) -> None:
    """Leave a message out for good."""
    _find(service, parked_id)
    command = DropParked(service=service, parked_id=parked_id, reason=reason)
    fact = kafka_commands.command(connection(), command, until=[ParkedResolved], seconds=ANSWER_SECONDS)
    show(fact.model_dump(mode="json"), f"{service} {parked_id}: dropped")


def _find(service: str, parked_id: int) -> MessageParked:
    if service not in PARKED_TOPICS:
        raise typer.BadParameter(f"service: found {service!r}, expected one of {', '.join(PARKED_TOPICS)}")
    for message in asyncio.run(_open(service)):
        if message.parked_id == parked_id:
            return message
    raise RefusedByPlatform(f"{service} has no open parked message {parked_id}; see `retune parked list`")


async def _open(service: str | None) -> list[MessageParked]:
    topics = [PARKED_TOPICS[service].name] if service else [topic.name for topic in PARKED_TOPICS.values()]
    parked: dict[tuple[str, int], MessageParked] = {}
    async with TopicReader(connection().kafka, topics) as reader:
        async for delivery in reader.to_the_end():
            message = delivery.message if isinstance(delivery, Delivery) else None
            if isinstance(message, MessageParked):
                parked[message.service, message.parked_id] = message
            elif isinstance(message, ParkedResolved) and message.state != "parked":
                parked.pop((message.service, message.parked_id), None)
    return list(parked.values())
