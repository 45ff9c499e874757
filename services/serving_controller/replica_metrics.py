"""vLLM's own metrics of each replica, passed on under vLLM's names with a label that names the replica."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from services.serving_controller.clients.backend import ReplicaBackend
from services.serving_controller.clients.vllm import NoAnswer, VllmClient
from shared.log import get_logger

log = get_logger(__name__)

REPLICA = "replica"
OF_EACH = ("model_name", "engine", REPLICA)


@dataclass(frozen=True)
class PassedOn:
    name: str
    """As vLLM's text has it; a counter's series ends in `_total`."""
    kind: str
    meaning: str
    labels: tuple[str, ...] = OF_EACH


PASSED_ON = (
    PassedOn("vllm:num_requests_running", "gauge", "Requests that a replica computes"),
    PassedOn("vllm:num_requests_waiting", "gauge", "Requests that wait within a replica"),
    PassedOn("vllm:kv_cache_usage_perc", "gauge", "Part of the memory for keys and values in use; 1 is all"),
    PassedOn("vllm:prompt_tokens", "counter", "Tokens of prompts"),
    PassedOn("vllm:generation_tokens", "counter", "Tokens of answers"),
    PassedOn("vllm:request_success", "counter", "Requests that ended, by why", (*OF_EACH, "finished_reason")),
    PassedOn("vllm:num_preemptions", "counter", "Requests that gave their memory to others"),
    PassedOn("vllm:prefix_cache_queries", "counter", "Tokens that were looked for in the prefix cache"),
    PassedOn("vllm:prefix_cache_hits", "counter", "Tokens that the prefix cache had"),
    PassedOn("vllm:request_queue_time_seconds", "histogram", "Time of a request in a replica's queue"),
    PassedOn("vllm:time_to_first_token_seconds", "histogram", "Time until the first token of an answer"),
    PassedOn("vllm:inter_token_latency_seconds", "histogram", "Time between two tokens of an answer"),
    PassedOn("vllm:e2e_request_latency_seconds", "histogram", "Time of a whole request"),
)
_BY_NAME = {each.name: each for each in PASSED_ON}


class ReplicaMetrics(Collector):
    """What every replica of this host showed last; a replica that does not answer shows nothing."""

    def __init__(self, backend: ReplicaBackend, http: httpx.AsyncClient) -> None:
        self._backend = backend
        self._http = http
        self._families: tuple[Metric, ...] = ()

    async def read(self) -> None:
        """Ask all replicas at once."""
        ids = await self._backend.list_owned()
        texts = await asyncio.gather(*map(self._text, ids))
        families: dict[str, Metric] = {}
        for replica_id, text in zip(ids, texts, strict=True):
            try:
                _add(families, replica_id, text)
            except ValueError as error:
                log.warning("metrics of a replica cannot be read", replica_id=replica_id, error=str(error))
        self._families = tuple(families.values())

    async def _text(self, replica_id: str) -> str:
        status = await self._backend.inspect(replica_id)
        if status is None or not status.is_alive:
            return ""
        try:
            key = self._backend.management_key(replica_id)
            return await VllmClient(self._http, status.url, key).metrics()
        except (NoAnswer, FileNotFoundError):  # it starts, or is being ended
            return ""

    async def close(self) -> None:
        REGISTRY.unregister(self)

    def collect(self) -> Iterator[Metric]:
        yield from self._families

    def describe(self) -> Iterator[Metric]:
        """Nothing: what there is is known when replicas run."""
        yield from ()


def _add(families: dict[str, Metric], replica_id: str, text: str) -> None:
    """Add what is passed on of a replica's text. Raises ValueError where it is none of Prometheus'."""
    of_replica = list(text_string_to_metric_families(text))
    for family in of_replica:
        if known := _BY_NAME.get(family.name):
            of_all = families.setdefault(known.name, Metric(known.name, known.meaning, known.kind))
            of_all.samples += [_of(replica_id, sample) for sample in family.samples if _is_kept(sample)]


def _is_kept(sample: Sample) -> bool:
    return not sample.name.endswith("_created")


def _of(replica_id: str, sample: Sample) -> Sample:
    return sample._replace(labels={**sample.labels, REPLICA: replica_id})
