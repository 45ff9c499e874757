"""The metrics that the services show at /metrics, by importing them."""

import importlib
from dataclasses import dataclass

from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

from schemas.topics import SERVICES


@dataclass(frozen=True)
class Metric:
    name: str
    """As Prometheus stores it; a histogram's series end in `_bucket`, `_sum` and `_count`."""
    kind: str
    labels: tuple[str, ...]
    meaning: str


def metrics() -> list[Metric]:
    for service in SERVICES:
        importlib.import_module(f"services.{service}.app")
    collectors = {each for each in REGISTRY._collector_to_names if isinstance(each, MetricWrapperBase)}  # noqa: SLF001
    return sorted(map(_metric, collectors), key=lambda metric: metric.name)


def _metric(collector: MetricWrapperBase) -> Metric:
    (family,) = collector.describe()
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return Metric(name, family.type, tuple(collector._labelnames), family.documentation)  # noqa: SLF001
