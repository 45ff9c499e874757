"""For services that a test wires itself: they start with a handler on each topic that the real one listens to."""

from typing import Any

from schemas.handled import HANDLED
from schemas.topics import LISTENS, message_type
from shared.messaging.unit import Unit
from shared.service import Service


async def ignore(message: Any, unit: Unit) -> None:
    """Have no effect."""


def handle_the_rest(service: Service) -> Service:
    """Ignore a type of each topic that has no handler yet."""
    for topic in LISTENS[service.name]:
        if topic.name not in service.handled():
            message = message_type(topic, HANDLED[service.name][topic.name][0])
            assert message is not None
            service.on(message, ignore, topic=topic)
    return service
