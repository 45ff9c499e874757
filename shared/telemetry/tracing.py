"""Traces that follow messages: `traceparent` goes into outbox headers and is restored by the consumer."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.propagate import extract, inject
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

_TRACER = trace.get_tracer("retune")


def configure_tracing(service: str) -> None:
    """Export spans by OTLP if OTEL_EXPORTER_OTLP_ENDPOINT is set; otherwise only ids are made."""
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


@contextmanager
def span(name: str, *, traceparent: str = "", **attributes: str) -> Iterator[None]:
    """Run the block in a span, which is a child of `traceparent` if one is given."""
    parent = extract({"traceparent": traceparent}) if traceparent else None
    with _TRACER.start_as_current_span(name, context=parent, attributes=attributes):
        yield


def current_traceparent() -> str:
    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier.get("traceparent", "")
