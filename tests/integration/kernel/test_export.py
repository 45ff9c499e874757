"""A process sends spans and metrics to an OTLP collector, here a server that reads OpenTelemetry's own messages."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.integration.kernel.conftest import Writer, new_key
from tests.integration.kernel.victim import Victim
from tests.waiting import until

pytestmark = pytest.mark.stack


SPAN = "node.events process"


@dataclass
class Collector:
    url: str = ""
    spans: dict[str, list[Any]] = field(default_factory=dict)
    """By the name of their service."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """What came last, by name."""
    requests: list[str] = field(default_factory=list)

    async def take_spans(self, request: web.Request) -> web.Response:
        self.requests.append(request.path)
        for of in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            spans = [span for scope in of.scope_spans for span in scope.spans]
            self.spans.setdefault(_service_of(of.resource), []).extend(spans)
        return web.Response()

    async def take_metrics(self, request: web.Request) -> web.Response:
        self.requests.append(request.path)
        for of in ExportMetricsServiceRequest.FromString(await request.read()).resource_metrics:
            assert _service_of(of.resource) == "tracker"
            self.metrics |= {metric.name: metric for scope in of.scope_metrics for metric in scope.metrics}
        return web.Response()


def _service_of(resource: Any) -> str:
    return labels_of(resource)["service.name"]


def labels_of(entry: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in entry.attributes}


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", collector.take_spans)
    app.router.add_post("/v1/metrics", collector.take_metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    collector.url = f"http://{host}:{port}"
    yield collector
    await runner.cleanup()


@pytest.fixture
def exporting(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")


async def handled(db: Any, event_id: str) -> None:
    async def is_handled() -> bool:
        return await db.fetchval("SELECT true FROM effect WHERE event_id = $1", event_id)

    await until(is_handled, "the message to be handled")


@pytest.mark.usefixtures("exporting")
async def test_a_message_is_a_span_and_is_counted(
    victim: Victim, writer: Writer, db: Any, collector: Collector
):
    async with victim.alive():
        await handled(db, await writer.good(new_key()))

        async def has_come() -> bool:
            names = {span.name for span in collector.spans.get("tracker", ())}
            counted = collector.metrics.get("messages_handled")
            return SPAN in names and counted is not None and len(counted.sum.data_points) > 0

        await until(has_come, "a span and a metric of the message")
    handled_total, seconds = collector.metrics["messages_handled"], collector.metrics["handler_seconds"]
    assert handled_total.sum.is_monotonic
    points = {labels_of(point)["type"]: point for point in seconds.histogram.data_points}
    point = points["NodesReleased"]
    assert labels_of(point) == {"service": "tracker", "type": "NodesReleased"}
    assert point.count == sum(point.bucket_counts) >= 1
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert 0 < point.sum < 60
    assert collector.metrics["outbox_rows"].HasField("gauge")
    (span, *_) = (span for span in collector.spans["tracker"] if span.name == SPAN)
    assert len(span.trace_id) == 16


@pytest.mark.usefixtures("exporting")
async def test_what_is_switched_off_is_not_sent(
    victim: Victim, writer: Writer, db: Any, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    async with victim.alive():
        await handled(db, await writer.good(new_key()))

        async def have_come() -> bool:
            return bool(collector.spans)

        await until(have_come, "spans")
    assert set(collector.requests) == {"/v1/traces"}
