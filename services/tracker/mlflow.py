"""An MLflow tracking server, over its REST API."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import httpx
from pydantic import SecretStr

from schemas.base import DatasetRef
from services.tracker.decide.mirror import Entry, Measured
from shared.errors import RetuneError, Unavailable

API = "/api/2.0/mlflow/"
TIMEOUT_SECONDS = 30.0
MAX_METRICS = 1_000
"""Metrics of one request, as MLflow limits them; it saves those of a request all or none."""
MAX_PAIRS = 100
"""Parameters of one request, and tags of one."""
LONGEST_DIGEST = 36
NO_SECRET = SecretStr("")
DOES_NOT_EXIST = "RESOURCE_DOES_NOT_EXIST"
ID_TAG = "retune.id"
"""Tag with the id of a run's job or sweep, by which the run is looked up, so that none ever has two."""


class MlflowUnavailable(Unavailable):
    """MLflow did not answer, lets nobody in, or answered with a server error."""

    dependency = "MLflow"


class NotTaken(RetuneError):
    """MLflow answered, and does not take what was sent."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Mlflow:
    """Raises MlflowUnavailable, and NotTaken for what the server refuses."""

    def __init__(
        self,
        url: str,
        *,
        username: str = "",
        password: SecretStr = NO_SECRET,
        token: SecretStr = NO_SECRET,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {"authorization": f"Bearer {token.get_secret_value()}"} if token.get_secret_value() else {}
        self._client = httpx.AsyncClient(
            base_url=url.rstrip("/") + API,
            headers=headers,
            auth=(username, password.get_secret_value()) if username else None,
            timeout=TIMEOUT_SECONDS,
            transport=transport,
        )
        self._experiments: dict[str, str] = {}
        self._making = asyncio.Lock()

    async def close(self) -> None:
        await self._client.aclose()

    async def find_or_create_run(
        self, experiment: str, subject_id: str, began_at: datetime, *, parent_id: str | None = None
    ) -> str:
        """Return the id of the run in the experiment; it is made where it is missing, and its parent's before it."""
        async with self._making:
            experiment_id = await self._experiment(experiment)
            tags = {}
            if parent_id is not None:
                tags["mlflow.parentRunId"] = await self._run(experiment_id, parent_id, began_at, {})
            return await self._run(experiment_id, subject_id, began_at, tags)

    async def _run(
        self, experiment_id: str, subject_id: str, began_at: datetime, tags: Mapping[str, str]
    ) -> str:
        search = {
            "experiment_ids": [experiment_id],
            "filter": f"tags.`{ID_TAG}` = '{subject_id}'",
            "max_results": 1,
        }
        for run in (await self._post("runs/search", search)).get("runs", []):
            return str(run["info"]["run_id"])
        new = {
            "experiment_id": experiment_id,
            "run_name": subject_id,
            "start_time": _milliseconds(began_at),
            "tags": _pairs({ID_TAG: subject_id, "mlflow.source.name": "retune", **tags}),
        }
        return str((await self._post("runs/create", new))["run"]["info"]["run_id"])

    async def log(self, run_id: str, entry: Entry) -> None:
        """Log all of it; what is sent again, because an answer was lost, is there once."""
        metrics = [metric for measured in entry.measured for metric in _metrics(measured)]
        for some in _parts(metrics, MAX_METRICS):
            await self._post("runs/log-batch", {"run_id": run_id, "metrics": some})
        for kind, values in (("params", entry.parameters), ("tags", entry.tags)):
            for pairs in _parts(_pairs(values), MAX_PAIRS):
                await self._post("runs/log-batch", {"run_id": run_id, kind: pairs})
        if entry.datasets:
            datasets = [_dataset_input(each) for each in entry.datasets]
            await self._post("runs/log-inputs", {"run_id": run_id, "datasets": datasets})
        if entry.status is not None:
            end = {"end_time": _milliseconds(entry.ended_at)} if entry.ended_at else {}
            await self._post("runs/update", {"run_id": run_id, "status": entry.status} | end)

    async def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            try:
                answer = await self._send("GET", "experiments/get-by-name", params={"experiment_name": name})
                experiment = answer["experiment"]
            except NotTaken as error:
                if error.code != DOES_NOT_EXIST:
                    raise
                experiment = await self._post("experiments/create", {"name": name})
            self._experiments[name] = experiment["experiment_id"]
        return self._experiments[name]

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._send("POST", path, json=body)

    async def _send(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            answer = await self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            raise MlflowUnavailable(f"MLflow does not answer: {type(error).__name__}: {error}") from error
        if answer.status_code in (401, 403, 429) or answer.status_code >= 500:
            raise MlflowUnavailable(f"MLflow answers {answer.status_code} {answer.reason_phrase}")
        try:
            body = answer.json()
        except ValueError as error:
            raise MlflowUnavailable(
                f"MLflow answers {answer.status_code} without JSON: is that its address?"
            ) from error
        if answer.is_error:
            raise NotTaken(str(body.get("error_code")), str(body.get("message")))
        fields: dict[str, Any] = body
        return fields


def _metrics(measured: Measured) -> list[dict[str, Any]]:
    time = _milliseconds(measured.time)
    return [
        {"key": name, "value": _number(value), "timestamp": time, "step": measured.step}
        for name, value in measured.values.items()
    ]


def _number(value: float) -> float | str:
    """Return the number as protobuf's JSON has it."""
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def _dataset_input(dataset: DatasetRef) -> dict[str, Any]:
    return {
        "dataset": {
            "name": f"dataset-{dataset.version[:12]}",
            "digest": dataset.version[:LONGEST_DIGEST],
            "source_type": "retune",
            "source": dataset.model_dump_json(),
        },
        "tags": _pairs({"mlflow.data.context": "training"}),
    }


def _pairs(values: Any) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _parts(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[first : first + size] for first in range(0, len(items), size)]


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1_000)
