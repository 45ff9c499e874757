"""What is asked of MLflow's REST API, and what its answers mean."""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from services.tracker.decide.mirror import Entry, Measured, RunStatus
from services.tracker.mlflow import MAX_METRICS, MAX_PAIRS, Mlflow, MlflowUnavailable, NotTaken
from tests.builders import NOON, a_dataset_ref

Answer = Callable[[httpx.Request], httpx.Response]
MILLISECONDS = round(NOON.timestamp() * 1_000)


class Server:
    def __init__(self, answer: Answer = lambda _: httpx.Response(200, json={})) -> None:
        self.requests: list[httpx.Request] = []
        self._answer = answer

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self._answer(request)

    def client(self, **options: Any) -> Mlflow:
        return Mlflow("http://mlflow.test/at/", transport=httpx.MockTransport(self), **options)

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [json.loads(each.content) for each in self.requests if each.url.path.endswith(path)]


async def test_an_address_may_have_a_path():
    server = Server()
    await server.client().log("run", Entry(tags={"a": "b"}))
    assert [str(each.url) for each in server.requests] == [
        "http://mlflow.test/at/api/2.0/mlflow/runs/log-batch"
    ]


async def test_a_large_entry_is_sent_in_parts_that_mlflow_takes():
    server = Server()
    measured = tuple(Measured(step, NOON, {"a": 1.0, "b": 2.0, "c": 3.0}) for step in range(400))
    tags = {f"tag{number}": "x" for number in range(250)}
    await server.client().log("run", Entry(measured, parameters=dict(tags), tags=tags))
    sizes = [
        {kind: len(values) for kind, values in body.items() if kind != "run_id"}
        for body in server.bodies("log-batch")
    ]
    assert sizes == [
        {"metrics": MAX_METRICS},
        {"metrics": 200},
        *[{"params": MAX_PAIRS}] * 2,
        {"params": 50},
        *[{"tags": MAX_PAIRS}] * 2,
        {"tags": 50},
    ]


async def test_numbers_that_json_has_no_word_for_are_sent_as_protobuf_has_them():
    server = Server()
    values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.5}
    await server.client().log("run", Entry((Measured(3, NOON, values),)))
    (body,) = server.bodies("log-batch")
    assert [each["value"] for each in body["metrics"]] == ["NaN", "Infinity", "-Infinity", 0.5]
    assert {(each["step"], each["timestamp"]) for each in body["metrics"]} == {(3, MILLISECONDS)}


async def test_the_state_is_sent_last_and_its_end_only_where_there_is_one():
    server = Server()
    entry = Entry(tags={"a": "b"}, datasets=(a_dataset_ref(),), status=RunStatus.FINISHED, ended_at=NOON)
    await server.client().log("run", entry)
    assert [each.url.path.rpartition("/")[2] for each in server.requests] == [
        "log-batch",
        "log-inputs",
        "update",
    ]
    assert server.bodies("update") == [{"run_id": "run", "status": "FINISHED", "end_time": MILLISECONDS}]
    await server.client().log("run", Entry(status=RunStatus.RUNNING))
    assert server.bodies("update")[1] == {"run_id": "run", "status": "RUNNING"}


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({}, None),
        ({"token": SecretStr("t0ken")}, "Bearer t0ken"),
        ({"username": "ann", "password": SecretStr("pass")}, "Basic YW5uOnBhc3M="),
    ],
)
async def test_requests_say_who_asks(options: dict[str, Any], header: str | None):
    server = Server()
    await server.client(**options).log("run", Entry(status=RunStatus.RUNNING))
    assert server.requests[0].headers.get("authorization") == header


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(401),
        httpx.Response(403),
        httpx.Response(429),
        httpx.Response(502, text="<html>"),
        httpx.Response(200, text="<html>a login page</html>"),
    ],
)
async def test_a_server_that_lets_nobody_in_is_away(answer: httpx.Response):
    with pytest.raises(MlflowUnavailable, match=f"answers {answer.status_code}"):
        await Server(lambda _: answer).client().log("run", Entry(status=RunStatus.RUNNING))


async def test_a_connection_that_breaks_is_an_absence():
    def breaks(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(MlflowUnavailable, match="ConnectError: refused"):
        await Server(breaks).client().log("run", Entry(status=RunStatus.RUNNING))


async def test_a_refusal_has_the_servers_words():
    refusal = httpx.Response(400, json={"error_code": "INVALID_PARAMETER_VALUE", "message": "run is deleted"})
    with pytest.raises(NotTaken, match="INVALID_PARAMETER_VALUE: run is deleted"):
        await Server(lambda _: refusal).client().log("run", Entry(status=RunStatus.RUNNING))


async def test_an_experiment_is_made_where_it_is_missing_and_looked_up_once():
    def answer(request: httpx.Request) -> httpx.Response:
        match request.url.path.rpartition("mlflow/")[2]:
            case "experiments/get-by-name":
                return httpx.Response(404, json={"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"})
            case "experiments/create":
                return httpx.Response(200, json={"experiment_id": "7"})
            case "runs/create":
                return httpx.Response(200, json={"run": {"info": {"run_id": "r1"}}})
        return httpx.Response(200, json={})

    server = Server(answer)
    client = server.client()
    assert await client.find_or_create_run("retune/demo", "ftjob-1", NOON) == "r1"
    assert await client.find_or_create_run("retune/demo", "ftjob-2", NOON) == "r1"
    paths = [each.url.path.rpartition("mlflow/")[2] for each in server.requests]
    assert paths.count("experiments/create") == 1
    (first, _) = server.bodies("runs/create")
    assert (first["experiment_id"], first["run_name"], first["start_time"]) == ("7", "ftjob-1", MILLISECONDS)


async def test_the_parent_of_a_run_is_made_before_it():
    made: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        match request.url.path.rpartition("mlflow/")[2]:
            case "experiments/get-by-name":
                return httpx.Response(200, json={"experiment": {"experiment_id": "7"}})
            case "runs/search":
                known = [name for name in made if f"'{name}'" in json.loads(request.content)["filter"]]
                return httpx.Response(
                    200, json={"runs": [{"info": {"run_id": f"run of {name}"}} for name in known]}
                )
            case "runs/create":
                made.append(json.loads(request.content)["run_name"])
                return httpx.Response(200, json={"run": {"info": {"run_id": f"run of {made[-1]}"}}})
        raise AssertionError(request.url)

    server = Server(answer)
    client = server.client()
    jobs = [client.find_or_create_run("e", f"job-{n}", NOON, parent_id="sweep") for n in range(3)]
    assert await asyncio.gather(*jobs) == [f"run of job-{n}" for n in range(3)]
    assert made == ["sweep", "job-0", "job-1", "job-2"]
    tags = [{each["key"]: each["value"] for each in body["tags"]} for body in server.bodies("runs/create")]
    assert [each.get("mlflow.parentRunId") for each in tags] == [None, *["run of sweep"] * 3]
    assert [each["retune.id"] for each in tags] == made
