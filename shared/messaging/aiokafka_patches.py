"""Patches that let aiokafka detect a lost connection under uvloop too, and close one over TLS at once.

Writing to a transport that has just closed does nothing on asyncio's own loop and raises RuntimeError on uvloop.
aiokafka does not handle that error: it ends the task that keeps the metadata, for which its client then waits for
ever.

Closing a transport over TLS waits until the server closes it as well, for up to 30 seconds, which a broker that holds
a fetch open does not do at once. All that we send is acknowledged before we close, so nothing is lost without that.

The module patches private names of the pinned aiokafka.
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


def patch_closing_over_tls() -> None:
    """Make every client of this process close its connections over TLS without waiting for the broker."""
    if not hasattr(AIOKafkaConnection.close, "__wrapped__"):
        AIOKafkaConnection.close = _aborting(AIOKafkaConnection.close)


def _aborting(close: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(close)
    def closed(connection: Any, *args: Any, **options: Any) -> Any:
        writer = connection._writer  # noqa: SLF001
        closing = close(connection, *args, **options)
        if writer is not None and writer.get_extra_info("ssl_object") is not None:
            writer.transport.abort()
        return closing

    return closed


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
