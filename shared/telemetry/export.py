"""What a process sends to an OTLP collector: spans as they end, and from time to time all that `/metrics` shows.

The variables are OpenTelemetry's own. Nothing is sent where OTEL_EXPORTER_OTLP_ENDPOINT is not set.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from threading import Thread

from opentelemetry import trace
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as Exported
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from shared.log import get_logger

log = get_logger(__name__)

NONE = "none"
EXPORT_MILLISECONDS = 60_000
SCOPE = InstrumentationScope("retune")
CUMULATIVE = AggregationTemporality.CUMULATIVE


def configure_telemetry(service: str) -> None:
    """Export spans and metrics by OTLP if OTEL_EXPORTER_OTLP_ENDPOINT is set; otherwise only ids are made.

    Raises ValueError where OTEL_METRIC_EXPORT_INTERVAL is no number of milliseconds.
    """
    resource = Resource.create({"service.name": service})
    provider = TracerProvider(resource=resource)
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        if os.environ.get("OTEL_TRACES_EXPORTER") != NONE:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        if os.environ.get("OTEL_METRICS_EXPORTER") != NONE:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            MetricsExport(OTLPMetricExporter(), resource, every_seconds=_interval_seconds()).start()
    trace.set_tracer_provider(provider)


def _interval_seconds() -> float:
    name = "OTEL_METRIC_EXPORT_INTERVAL"
    text = os.environ.get(name) or str(EXPORT_MILLISECONDS)
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{name}: found {text!r}, expected a number of milliseconds")
    return int(text) / 1000


class MetricsExport(Thread):
    """Exports the process' metrics again and again. What a process counts after its last export goes with it: to send
    it would hold up the stop of each service for seconds while the collector is away.
    """

    def __init__(self, exporter: MetricExporter, resource: Resource, *, every_seconds: float) -> None:
        super().__init__(name="metrics", daemon=True)
        self._exporter = exporter
        self._resource = resource
        self._every_seconds = every_seconds
        self._began_at = time.time_ns()

    def run(self) -> None:
        while True:
            time.sleep(self._every_seconds)
            try:
                self.export()
            except Exception:
                log.exception("metrics not exported")

    def export(self) -> None:
        exported = exported_metrics(REGISTRY.collect(), began_at=self._began_at, now=time.time_ns())
        scope = ScopeMetrics(SCOPE, list(exported), schema_url="")
        self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], schema_url="")]))


def exported_metrics(families: Iterable[Metric], *, began_at: int, now: int) -> Iterator[Exported]:
    """Yield Prometheus' families as OTLP has them; times are in nanoseconds since 1970.

    Counters, gauges and histograms: we have no others, and those of Prometheus' client about the process are gauges
    and counters.
    """
    for family in families:
        if family.type == "histogram":
            points = list(_histograms(family, began_at, now))
            data: Sum | Gauge | Histogram = Histogram(points, CUMULATIVE)
        elif family.type == "counter":
            kept = [sample for sample in family.samples if not sample.name.endswith("_created")]
            data = Sum(_numbers(kept, began_at, now), CUMULATIVE, is_monotonic=True)
        else:
            data = Gauge(_numbers(family.samples, began_at, now))
        if data.data_points:
            yield Exported(family.name, family.documentation, family.unit, data)


def _numbers(samples: Iterable[Sample], began_at: int, now: int) -> list[NumberDataPoint]:
    return [NumberDataPoint(sample.labels, began_at, now, sample.value) for sample in samples]


def _histograms(family: Metric, began_at: int, now: int) -> Iterator[HistogramDataPoint]:
    """Of Prometheus' buckets each counts those below it, too; OTLP's are apart, and the last has no bound."""
    buckets: dict[tuple[tuple[str, str], ...], dict[float, float]] = defaultdict(dict)
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = _without_bound(sample.labels)
        if sample.name.endswith("_bucket"):
            buckets[labels][float(sample.labels["le"])] = sample.value
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    for labels, below in buckets.items():
        bounds = sorted(below)
        counts = [0.0, *(below[bound] for bound in bounds)]
        yield HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=began_at,
            time_unix_nano=now,
            count=int(counts[-1]),
            sum=sums[labels],
            bucket_counts=[int(later - earlier) for earlier, later in pairwise(counts)],
            explicit_bounds=bounds[:-1],
            min=None,  # type: ignore[arg-type]  # optional in OTLP, and Prometheus keeps none
            max=None,  # type: ignore[arg-type]
        )


def _without_bound(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in labels.items() if name != "le")
