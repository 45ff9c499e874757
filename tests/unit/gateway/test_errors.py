import re

import asyncpg
import httpx
import openai
import pytest
from fastapi import FastAPI
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError
from starlette.requests import ClientDisconnect
from structlog.testing import capture_logs

from services.gateway.errors import ApiError, first_problem, install, not_found, unavailable
from services.gateway.page import problems
from services.gateway.requests import CreateJob
from shared.errors import StorageUnavailable, TooLarge

JOB = {"model": "tiny", "training_file": "file-1"}


def problem(body: dict, kind: type = CreateJob) -> dict:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    return first_problem(caught.value.errors()).body["error"]


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"colour": "blue"}, "colour", "unknown_parameter"),
        ({"metadata": {"k" * 65: "v"}}, f"metadata.{'k' * 65}", "invalid_value"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "invalid_value"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata", "invalid_value"),
        ({"retune": {"max_cost": 0}}, "retune.max_cost", "invalid_value"),
        ({"hyperparameters": {"n_epochs": 0}}, "hyperparameters.n_epochs", "invalid_value"),
        ({"suffix": "a b"}, "suffix", "invalid_value"),
    ],
)
def test_the_parameter_is_named_with_a_code(changes, param, code):
    error = problem(JOB | changes)
    assert (error["param"], error["code"]) == (param, code)
    assert param in error["message"]


def test_a_missing_field_has_openais_code():
    error = problem({"model": "tiny"})
    assert (error["param"], error["code"]) == ("training_file", "missing_required_parameter")
    assert "secret" not in problem({"model": "tiny", "suffix": "secret"})["message"]


def test_metadata_at_its_limits_is_taken():
    metadata = {f"{n:064}": "v" * 512 for n in range(16)}
    assert CreateJob.model_validate(JOB | {"metadata": metadata}).metadata == metadata


def test_a_body_that_is_no_json_is_no_parameter():
    raw = {"type": "json_invalid", "loc": ("body", 12), "msg": "JSON decode error", "input": {}}
    error = first_problem([raw]).body["error"]
    assert (error["param"], error["code"]) == (None, "invalid_json")


def test_what_does_not_exist_has_a_code_without_hyphens():
    error = not_found("fine-tuning job", "ftjob-1", param="fine_tuning_job_id").body["error"]
    assert error["code"] == "fine_tuning_job_not_found"


def test_clients_learn_when_to_come_back():
    assert unavailable("away", code="x").answer().headers["retry-after"] == "5"
    assert "retry-after" not in ApiError(400, "no").answer().headers


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ConnectionRefusedError(111, "refused"), 503, "database_unavailable"),
        (TimeoutError(), 503, "database_unavailable"),
        (TooLarge("SubmitJob: found 2 bytes", limit=1), 413, "request_too_large"),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), 400, "invalid_value"),
        (PydanticSerializationError("surrogates not allowed"), 400, "invalid_value"),
        (asyncpg.ConnectionDoesNotExistError("gone"), 503, "database_unavailable"),
        (asyncpg.InterfaceError("connection is closed"), 503, "database_unavailable"),
        (asyncpg.CannotConnectNowError("starting"), 503, "database_unavailable"),
        (asyncpg.LockNotAvailableError("locked"), 503, "database_unavailable"),
        (asyncpg.DiskFullError("no space"), 503, "database_unavailable"),
        (asyncpg.QueryCanceledError("too slow"), 503, "database_unavailable"),
        (StorageUnavailable("S3"), 503, "storage_unavailable"),
        (asyncpg.UndefinedTableError("no such table"), 500, "internal_error"),
        (asyncpg.DataError("not an int"), 500, "internal_error"),
        (asyncpg.CharacterNotInRepertoireError("0x00"), 400, "invalid_value"),
        (ClientDisconnect(), 400, "invalid_body"),
    ],
)
async def test_what_is_away_is_not_our_bug(error, status, code):
    app = FastAPI()
    install(app)

    @app.get("/")
    async def fail() -> None:
        raise error

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.get("/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert ("retry-after" in answer.headers) == (status == 503)


def test_no_answer_repeats_more_than_a_sentence_of_the_request_or_what_is_no_text():
    answer = ApiError(400, "\ud800" + "x" * 3_000_000).answer()
    assert len(answer.body) < 2_000


async def test_a_page_of_an_error_has_the_id_by_which_the_request_is_logged():
    app = FastAPI()
    install(app, problems.shown)

    @app.get("/")
    async def fail() -> None:
        raise RuntimeError("a bug")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    ids = []
    with capture_logs() as logs:
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            for headers in ({"accept": "text/html"}, {"accept": "text/html", "hx-request": "true"}):
                answer = await client.get("/", headers=headers)
                ids += re.findall(r"req-[0-9a-f]{16}", answer.text)[:1]
            assert (await client.get("/absent", headers={"accept": "text/html"})).status_code == 404
    assert len({*ids}) == 2
    failed = [entry["request_id"] for entry in logs if entry["event"] == "request failed"]
    pages = [(entry["request_id"], entry["status"]) for entry in logs if entry["event"] == "page of an error"]
    assert failed == ids
    assert pages[:2] == [(each, 500) for each in ids]
    assert pages[2][1] == 404


@pytest.mark.parametrize(
    ("path", "status", "event"), [("/fail", 500, "request failed"), ("/absent", 404, "request refused")]
)
async def test_a_program_has_the_id_where_openais_client_looks_for_it(path, status, event):
    app = FastAPI()
    install(app)

    @app.get("/fail")
    async def fail() -> None:
        raise RuntimeError("a bug")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    with capture_logs() as logs:
        async with openai.AsyncOpenAI(
            api_key="key",
            base_url="http://gateway",
            max_retries=0,
            http_client=httpx.AsyncClient(transport=transport),
        ) as client:
            with pytest.raises(openai.APIStatusError) as caught:
                await client.get(path, cast_to=object)
    assert caught.value.status_code == status
    assert [entry["request_id"] for entry in logs if entry["event"] == event] == [caught.value.request_id]


async def test_what_anybody_may_send_at_will_is_not_logged():
    app = FastAPI()
    install(app)

    @app.get("/{status}")
    async def refuse(status: int) -> None:
        raise ApiError(status, "no", code="no")

    with capture_logs() as logs:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            answers = [await client.get(f"/{status}") for status in (401, 429, 403)]
    assert all(re.fullmatch("req-[0-9a-f]{16}", each.headers["x-request-id"]) for each in answers)
    assert [entry["status"] for entry in logs] == [403]
