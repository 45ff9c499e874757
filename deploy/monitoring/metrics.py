"""The metrics that the services show at /metrics, by importing them."""

import importlib
from dataclasses import dataclass

from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

from schemas.topics import SERVICES
from services.serving_controller.replica_metrics import PASSED_ON


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
    of_vllm = [
        Metric(_stored(each.name, each.kind), each.kind, each.labels, each.meaning) for each in PASSED_ON
    ]
    return sorted([*map(_metric, collectors), *of_vllm], key=lambda metric: metric.name)


def _metric(collector: MetricWrapperBase) -> Metric:
    (family,) = collector.describe()
    labels = tuple(collector._labelnames)  # noqa: SLF001
    return Metric(_stored(family.name, family.type), family.type, labels, family.documentation)


def _stored(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name
