"""What Prometheus and OpenTelemetry's collector have of one job, from submit to served."""

from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from deploy.collector.server import Collector
from deploy.local.errors import MissingPart
from deploy.monitoring.metrics import Metric, metrics
from deploy.prometheus.server import Prometheus
from schemas.model import DeploymentApproved
from schemas.topics import SERVICES
from shared.processes.ending import until
from tests.chaos.scale import at_night
from tests.e2e import material
from tests.e2e.conftest import Platform, running_platform
from tests.e2e.test_prometheus import until_all_are_scraped, watching
from tests.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.stack,
    pytest.mark.torch,
    at_night("a whole platform of its own"),
]

RARE = {
    "consumer_records_lost_total": "Kafka deleted records before they were read",
    "jobs_longest_queued_seconds": "a job waits for nodes while the scheduler counts",
    "messages_parked_total": "a message was set aside",
    "messages_parked_without_bytes_total": "a message was set aside without its bytes",
    "training_chosen_reward": "a preference job trains",
    "training_rejected_reward": "a preference job trains",
    "training_reward_accuracy": "a preference job trains",
    "training_reward_margin": "a preference job trains",
    "training_mfu": "a GPU of a known peak trains",
    "training_router_loss": "a mixture of experts trains",
    "webhook_deliveries_total": "a webhook was sent",
}
"""Metrics that one undisturbed job has no sample of, and what they wait for."""
NOT_IN_A_JOB = {"accounts", "auditor"}
"""Services that handle no message of a job: one has the accounts, the other reads every record without a handler."""


@dataclass
class Watched:
    platform: Platform
    prometheus: Prometheus
    collector: Collector
    job: dict[str, Any]


@pytest.fixture(scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    try:
        collector = Collector(folder / "collector")
    except MissingPart as missing:
        pytest.skip(str(missing))
    with collector, pytest.MonkeyPatch.context() as env:
        env.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        env.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
        async with running_platform(folder) as platform:
            with watching(platform.stack, folder / "prometheus") as prometheus:
                await until_all_are_scraped(prometheus)
                job = await platform.finished(await platform.submit())
                thing = material.THINGS[310]
                await platform.answer(job["fine_tuned_model"], f"What colour is the {thing}?")
                yield Watched(platform, prometheus, collector, job)


async def test_every_metric_has_samples_but_those_of_rare_events(watched: Watched):
    assert watched.job["retune"]["is_deployed"], watched.platform.retune("jobs", "events", watched.job["id"])

    def has_samples(metric: Metric) -> bool:
        name = f"{metric.name}_count" if metric.kind == "histogram" else metric.name
        return bool(watched.prometheus.query(f'last_over_time({{__name__="{name}", job="retune"}}[1h])'))

    names = {metric.name for metric in metrics()}
    assert names >= {*RARE}
    expected = names - {*RARE}
    missing = set[str]()

    def all_have_samples() -> bool:
        missing.clear()
        missing.update(each.name for each in metrics() if each.name in expected and not has_samples(each))
        return not missing

    assert await until(all_have_samples, PATIENCE_SECONDS), f"without samples: {sorted(missing)}"


async def test_a_job_is_one_trace_at_the_collector_from_submit_to_served(watched: Watched):
    facts = await watched.platform.events(watched.job["id"])
    (approved,) = {each.message for each in facts if isinstance(each.message, DeploymentApproved)}
    facts += await watched.platform.events_of(slot=approved.slot)
    (trace,) = {each.envelope.traceparent.split("-")[1] for each in facts}
    of_services = defaultdict[str, dict[str, dict[str, Any]]](dict)

    def are_there() -> bool:
        of_services.clear()
        for span in watched.collector.spans():
            if span["traceId"] == trace:
                of_services[span["service"]][span["spanId"]] = span
        return {*of_services} >= {*SERVICES} - NOT_IN_A_JOB

    assert await until(are_there, PATIENCE_SECONDS), sorted(of_services)
    spans = {span_id: span for each in of_services.values() for span_id, span in each.items()}
    roots = [span for span in spans.values() if not span.get("parentSpanId")]
    assert [(root["service"], root["name"]) for root in roots] == [("gateway", "POST /v1/fine_tuning/jobs")]
    assert {span["parentSpanId"] for span in spans.values() if span.get("parentSpanId")} <= {*spans}
    assert all(int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"]) for span in spans.values())


async def test_the_collector_has_of_each_service_the_metrics_that_prometheus_has(watched: Watched):
    def missing() -> dict[str, set[str]]:
        """Names of families with samples that were scraped of a service and not received from it."""
        received = defaultdict[str, set[str]](set)
        for metric in watched.collector.metrics():
            received[metric["service"]].add(metric["name"])
        kinds = {f"{each.name}_count" if each.kind == "histogram" else each.name for each in metrics()}
        scraped = defaultdict[str, set[str]](set)
        for target in watched.prometheus.targets():
            instance, service = target["labels"]["instance"], target["labels"]["service"]
            names = {
                each["metric"]["__name__"] for each in watched.prometheus.query(f'{{instance="{instance}"}}')
            }
            scraped[service] |= {name.removesuffix("_count").removesuffix("_total") for name in names & kinds}
        assert {*scraped} == {*SERVICES}
        return {service: names - received[service] for service, names in scraped.items()}

    assert await until(lambda: not any(missing().values()), PATIENCE_SECONDS), missing()
