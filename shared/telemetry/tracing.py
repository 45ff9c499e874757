"""Traces that follow messages: `traceparent` goes into outbox headers and is restored by the consumer."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.propagate import extract, inject

_TRACER = trace.get_tracer("retune")


@contextmanager
def span(name: str, *, traceparent: str = "", **attributes: str) -> Iterator[trace.Span]:
    """Run the block in a span, which is a child of `traceparent` if one is given."""
    parent = extract({"traceparent": traceparent}) if traceparent else None
    with _TRACER.start_as_current_span(name, context=parent, attributes=attributes) as current:
        yield current


def current_traceparent() -> str:
    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier.get("traceparent", "")
