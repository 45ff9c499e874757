"""The OpenAPI of the routes says what each of them answers, and `/docs` shows it."""

import json
import re
from collections import Counter
from typing import Any, get_origin, get_type_hints

import httpx
import pytest
from fastapi.routing import APIRoute

from services.gateway.app import api

UNTYPED = {"datasets_report"}
"""A document that ingest wrote is passed on as it is."""


@pytest.fixture(scope="module")
def openapi() -> dict[str, Any]:
    return api().openapi()


def operations(openapi: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for item in openapi["paths"].values() for operation in item.values()]


def test_operation_ids_are_unique(openapi: dict[str, Any]):
    ids = Counter(operation["operationId"] for operation in operations(openapi))
    assert len(ids) > 50
    assert [name for name, count in ids.items() if count > 1] == []


def test_every_answer_has_a_type(openapi: dict[str, Any]):
    untyped = {
        operation["operationId"]
        for operation in operations(openapi)
        for media in operation["responses"]["200"]["content"].values()
        if not media.get("schema")
    }
    assert untyped == UNTYPED


def test_no_route_answers_a_plain_dict():
    answers = {
        route.name: get_type_hints(route.endpoint)["return"]
        for route in api().routes
        if isinstance(route, APIRoute)
    }
    assert [name for name, kind in answers.items() if dict in (kind, get_origin(kind))] == []


def test_errors_have_openais_shape(openapi: dict[str, Any]):
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
    for operation in operations(openapi):
        assert {
            code: answer["content"] for code, answer in operation["responses"].items() if code != "200"
        } == {
            "4XX": error,
            "5XX": error,
        }


def test_every_reference_leads_somewhere(openapi: dict[str, Any]):
    for path in set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(openapi))):
        part = openapi
        for name in path.split("/"):
            part = part[name.replace("~1", "/")]


async def test_the_page_names_every_route_and_object_and_runs_nothing(openapi: dict[str, Any]):
    transport = httpx.ASGITransport(api())
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        answer = await http.get("/docs")
    assert answer.status_code == 200
    assert all(f"{path}</summary>" in answer.text for path in openapi["paths"])
    assert all(f'id="{name}"' in answer.text for name in openapi["components"]["schemas"])
    assert "<script" not in answer.text
    assert "http" not in re.sub(r"<td>.*?</td>|<p>.*?</p>|<summary>.*?</summary>", "", answer.text)
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
