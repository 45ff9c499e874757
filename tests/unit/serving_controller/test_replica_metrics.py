"""What replicas count is shown with their names, and nothing of one that does not answer."""

from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from services.serving_controller.clients.backend import ReplicaStatus
from services.serving_controller.replica_metrics import ReplicaMetrics

TEXT = """\
# HELP python_info Python
# TYPE python_info gauge
python_info{version="3.11"} 1.0
# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} %d
# HELP vllm:prompt_tokens_total Number of tokens
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 12.0
# HELP vllm:prompt_tokens_created Number of tokens
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="tiny"} 1.7e+09
"""


class Backend:
    """Its replicas run at http://<id>; of one that is being ended the key is gone."""

    def __init__(self) -> None:
        self.alive = {"r-0": True, "r-1": True}

    async def list_owned(self) -> list[str]:
        return list(self.alive)

    async def inspect(self, replica_id: str) -> ReplicaStatus | None:
        return ReplicaStatus(replica_id, "1", f"http://{replica_id}", self.alive[replica_id])

    def management_key(self, replica_id: str) -> str:
        if replica_id == "no-key":
            raise FileNotFoundError(Path(replica_id))
        return f"key of {replica_id}"


def answer(request: httpx.Request) -> httpx.Response:
    replica = request.url.host
    if replica == "starts":
        raise httpx.ConnectError("nobody listens")
    if replica == "strange":
        return httpx.Response(200, text="<html>not of Prometheus</html>")
    known = request.headers["authorization"] == f"Bearer key of {replica}"
    return httpx.Response(200 if known else 401, text=TEXT % int(replica[-1]))


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def metrics(backend: Backend) -> ReplicaMetrics:
    return ReplicaMetrics(backend, httpx.AsyncClient(transport=httpx.MockTransport(answer)))  # type: ignore[arg-type]


async def shown(metrics: ReplicaMetrics) -> list[str]:
    await metrics.read()
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode().splitlines()


def running(replica: str, requests: float) -> str:
    labels = f'engine="0",model_name="tiny",replica="{replica}"'
    return f"vllm:num_requests_running{{{labels}}} {requests}"


async def test_each_has_its_own_lines_in_one_family(metrics: ReplicaMetrics):
    lines = await shown(metrics)
    first = lines.index("# TYPE vllm:num_requests_running gauge")
    assert lines[first + 1 : first + 3] == [running("r-0", 0.0), running("r-1", 1.0)]
    assert len([line for line in lines if line.startswith("vllm:prompt_tokens_total{")]) == 2
    assert not [line for line in lines if "python_info" in line or "_created" in line]


async def test_one_that_does_not_answer_shows_nothing_and_holds_up_no_other(
    metrics: ReplicaMetrics, backend: Backend
):
    await metrics.read()
    backend.alive = {"r-0": False, "starts": True, "strange": True, "no-key": True, "r-1": True}
    lines = await shown(metrics)
    assert [line for line in lines if line.startswith("vllm:num_requests_running{")] == [running("r-1", 1.0)]
