"""What a process shows at `/metrics` has the names of its metrics, whatever format is asked for."""

import httpx
import pytest
from prometheus_client import Gauge
from prometheus_client.registry import CollectorRegistry

from shared.telemetry.metrics_route import metrics_app

OF_PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""As 2.42 sends it."""


@pytest.mark.parametrize("accept", [OF_PROMETHEUS, "text/plain", "*/*"])
async def test_a_name_with_a_colon_stays(accept: str):
    registry = CollectorRegistry()
    Gauge("vllm:num_requests_running", "Requests", registry=registry).set(3)
    transport = httpx.ASGITransport(metrics_app(registry))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        answer = await http.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith("text/plain")
    assert "vllm:num_requests_running 3.0" in answer.text.splitlines()
