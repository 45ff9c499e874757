"""Structured logs with a static event name, identifiers as fields and context that the consumer binds once."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from opentelemetry import trace


def configure_logging(service: str, *, level: int = logging.INFO) -> None:
    """Log one JSON object per line to stderr; warnings of libraries go to stderr as plain text."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_trace_id,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    structlog.contextvars.bind_contextvars(service=service)


def get_logger(name: str) -> Any:
    return structlog.get_logger(module=name)


@contextmanager
def log_context(**fields: object) -> Iterator[None]:
    with structlog.contextvars.bound_contextvars(**fields):
        yield


def _add_trace_id(
    _logger: object, _method: str, entry: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Add the trace id of the open span, which is the same in the logs of every service that the trace passes."""
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        entry["trace_id"] = trace.format_trace_id(context.trace_id)
    return entry
