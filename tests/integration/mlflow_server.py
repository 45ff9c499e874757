"""MLflow's own tracking server over SQLite, which keeps its address and what it has while it is stopped."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from shared.ports import free_port
from shared.processes.spawn import ending_with_us
from tests.waiting import PATIENCE_SECONDS


class MlflowServer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        command = (
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)),
            *("--backend-store-uri", f"sqlite:///{self._folder}/runs.db", "--workers", "1"),
            *("--default-artifact-root", str(self._folder / "artifacts")),
        )
        # Its background jobs need packages of models, which are not installed.
        env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "DO_NOT_TRACK": "true"}
        self._process = self._spawn(ending_with_us(command, signal.SIGTERM), env)
        async with asyncio.timeout(PATIENCE_SECONDS), httpx.AsyncClient() as client:
            while not await _answers(client, self.url):
                assert self._process.poll() is None, (self._folder / "log").read_text()[-2_000:]
                await asyncio.sleep(0.1)

    def _spawn(self, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=self._folder)

    async def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait)
            self._process = None

    async def runs(self, experiment: str, subject_id: str) -> list[dict[str, Any]]:
        """Return all runs of the job or sweep in this experiment, deleted ones too."""
        answer = await self.get("experiments/get-by-name", experiment_name=experiment)
        if "experiment" not in answer:
            return []
        search = {
            "experiment_ids": [answer["experiment"]["experiment_id"]],
            "filter": f"tags.`retune.id` = '{subject_id}'",
            "run_view_type": "ALL",
        }
        runs: list[dict[str, Any]] = (await self.post("runs/search", search)).get("runs", [])
        return runs

    async def history(self, run_id: str, metric: str) -> list[tuple[int, float]]:
        """Return step and value of each of the metric's points, by step."""
        answer = await self.get("metrics/get-history", run_id=run_id, metric_key=metric, max_results="25000")
        return sorted((point["step"], float(point["value"])) for point in answer.get("metrics", []))

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        return await self._send("GET", path, params=query)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._send("POST", path, json=body)

    async def _send(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        async with httpx.AsyncClient(timeout=30) as client:
            answer = await client.request(method, f"{self.url}/api/2.0/mlflow/{path}", **options)
        fields: dict[str, Any] = answer.json()
        return fields


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health")).is_success
    except httpx.HTTPError:
        return False
