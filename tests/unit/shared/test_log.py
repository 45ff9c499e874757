"""A line of the log names the event and the trace that it belongs to."""

import io
import json
import logging
import sys

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider

from shared.log import configure_logging, get_logger, log_context
from shared.telemetry import tracing
from shared.telemetry.tracing import span

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def lines(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(tracing, "_TRACER", TracerProvider().get_tracer("test"))
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    before = structlog.get_config()
    configure_logging("tracker")
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


def test_inside_a_delivery_it_has_both(lines):
    with log_context(event_id="e-1"), span("handle", traceparent=f"00-{TRACE_ID}-b7ad6b7169203331-01"):
        get_logger("m").info("job requeued", attempt=3)
    [line] = lines()
    assert (line["event"], line["attempt"]) == ("job requeued", 3)
    assert (line["event_id"], line["trace_id"]) == ("e-1", TRACE_ID)


def test_a_span_that_begins_a_trace_has_its_id(lines):
    with span("timer"):
        get_logger("m").info("fired")
    [line] = lines()
    assert len(line["trace_id"]) == 32
    assert int(line["trace_id"], 16)


def test_outside_of_any_span_there_is_none(lines):
    get_logger("m").info("service started")
    [line] = lines()
    assert "trace_id" not in line
    assert line["service"] == "tracker"
