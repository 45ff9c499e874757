"""Commands and topics over Kafka, as the operator's own user."""

import asyncio
from collections.abc import Callable, Iterable

from cli.changes import plan_command
from ops.connection import OPERATOR, Connection
from ops.errors import RefusedByPlatform, Unreachable
from schemas.base import CommandRefused, Message
from schemas.topics import TOPICS

Answers = Callable[[Message], bool]


def command(
    connection: Connection,
    message: Message,
    *,
    until: Iterable[type[Message]],
    seconds: float,
    answers: Answers = lambda fact: False,
) -> Message:
    """Send a command and wait for one of the facts it causes. Raises RefusedByPlatform, Unreachable.

    `answers` recognises facts that follow from the command without naming it, such as the loss of a node.
    """
    plan_command(message)
    return asyncio.run(_command(connection, message, tuple(until), seconds, answers))


async def _command(
    connection: Connection,
    message: Message,
    until: tuple[type[Message], ...],
    seconds: float,
    answers: Answers,
) -> Message:
    # Slow to import: most commands of a noun need no Kafka.
    from shared.messaging.delivery import Delivery
    from shared.messaging.reader import TopicReader, send

    topics = {topic.name for topic in TOPICS for fact in (*until, CommandRefused) if fact in topic.messages}
    try:
        async with TopicReader(connection.kafka, topics, from_end=True) as reader, asyncio.timeout(seconds):
            event_id = await send(connection.kafka, message, writer=OPERATOR)
            async for delivery in reader.follow():
                if not isinstance(delivery, Delivery):
                    continue
                is_caused = delivery.envelope.correlation_id == event_id
                if is_caused and isinstance(delivery.message, CommandRefused):
                    raise RefusedByPlatform(f"{delivery.message.code}: {delivery.message.message}")
                if isinstance(delivery.message, until) and (is_caused or answers(delivery.message)):
                    return delivery.message
    except TimeoutError as error:
        raise Unreachable(
            f"nobody answered {message.type} within {seconds:g} s; see `retune status`"
        ) from error
    except OSError as error:
        raise Unreachable(f"Kafka at {connection.kafka.bootstrap} does not answer: {error}") from error
    raise AssertionError("a followed topic has no end")
