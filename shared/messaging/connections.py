"""Lets aiokafka find out that a connection is gone, also under uvloop.

To write to a transport that has just closed does nothing on asyncio's own loop and raises RuntimeError on uvloop.
aiokafka does not know that error: it ends the task that keeps the metadata, for which its client then waits for ever.
Reaches into private names of the pinned aiokafka.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError, KafkaError


def patch_closed_transports() -> None:
    """Make every client of this process see a connection that is gone as one."""
    for name in ("send", "_send_sasl_token"):
        setattr(AIOKafkaConnection, name, _telling(getattr(AIOKafkaConnection, name)))


def _telling(send: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(send)
    def telling(connection: Any, *args: Any, **options: Any) -> Any:
        try:
            return send(connection, *args, **options)
        except KafkaError:
            raise
        except RuntimeError as error:
            connection.close(reason=CloseReason.CONNECTION_BROKEN)
            place = f"{connection.host}:{connection.port}"
            raise KafkaConnectionError(f"Connection at {place} broken: {error}") from error

    return telling
