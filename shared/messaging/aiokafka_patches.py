"""A patch that lets aiokafka detect a lost connection under uvloop too.

Writing to a transport that has just closed does nothing on asyncio's own loop and raises RuntimeError on uvloop.
aiokafka does not handle that error: it ends the task that keeps the metadata, for which its client then waits for
ever. The module patches private names of the pinned aiokafka.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError, KafkaError


def patch_closed_transports() -> None:
    """Make every client of this process treat a write to a closed transport as a lost connection."""
    for name in ("send", "_send_sasl_token"):
        setattr(AIOKafkaConnection, name, _closing(getattr(AIOKafkaConnection, name)))


def _closing(send: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(send)
    def sent(connection: Any, *args: Any, **options: Any) -> Any:
        try:
            return send(connection, *args, **options)
        except KafkaError:
            raise
        except RuntimeError as error:
            connection.close(reason=CloseReason.CONNECTION_BROKEN)
            address = f"{connection.host}:{connection.port}"
            raise KafkaConnectionError(f"Connection at {address} broken: {error}") from error

    return sent
