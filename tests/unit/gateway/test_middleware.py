from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY
from starlette.exceptions import HTTPException
from starlette.requests import Request

from services.gateway.errors import request_id_of
from services.gateway.middleware import (
    MAX_BODY_BYTES,
    MAX_FORM_BYTES,
    BoundedBody,
    HttpsOnly,
    Identified,
    Measured,
    Traced,
)
from shared.telemetry.export import configure_telemetry
from shared.telemetry.tracing import current_traceparent

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Server:
    """An application that reads its body, and what it was sent."""

    def __init__(self) -> None:
        self.read = 0
        self.traceparents: list[str] = []
        self.sent: list[dict] = []

    async def app(self, scope, receive, send) -> None:
        self.traceparents += [current_traceparent(), current_traceparent()]
        while (message := await receive()).get("more_body"):
            self.read += len(message["body"])

    async def send(self, message) -> None:
        self.sent.append(message)


def a_scope(path: str = "/v1/fine_tuning/jobs", **headers: str) -> dict:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "POST", "path": path, "headers": named}


def parts(number: int, size: int = 1024 * 1024):
    left = [{"type": "http.request", "body": b"x" * size, "more_body": True}] * number
    left.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> dict:
        return left.pop(0)

    return receive


@pytest.mark.parametrize(("path", "is_named"), [("/v1/files", True), ("/jobs", False)])
async def test_each_answer_to_a_program_names_the_requests_id(path, is_named):
    server, asked = Server(), []

    async def answer(scope, receive, send) -> None:
        asked.append(request_id_of(Request(scope)))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    await Identified(answer)(a_scope(path), parts(0), server.send)
    headers = dict(server.sent[0]["headers"])
    assert headers.get(b"x-request-id") == (asked[0].encode() if is_named else None)


class TestMeasured:
    @pytest.mark.parametrize(
        ("method", "route", "labels"),
        [
            ("POST", "/v1/models/{name}/deploy", ("POST", "/v1/models/{name}/deploy")),
            ("BREW", "/v1/models", ("", "/v1/models")),
            ("GET", None, ("GET", "")),
        ],
    )
    async def test_counts_an_answer_by_what_nobody_can_make_up(self, method, route, labels):
        async def app(scope, receive, send) -> None:
            if route is not None:
                scope["route"] = SimpleNamespace(path=route)
            await send({"type": "http.response.start", "status": 202, "headers": []})
            await send({"type": "http.response.body", "body": b"x"})

        named = {"method": labels[0], "route": labels[1], "status": "202"}
        before = REGISTRY.get_sample_value("http_answer_seconds_count", named) or 0
        server = Server()
        await Measured(app)(a_scope() | {"method": method}, parts(0), server.send)
        assert REGISTRY.get_sample_value("http_answer_seconds_count", named) == before + 1
        assert [each["type"] for each in server.sent] == ["http.response.start", "http.response.body"]


@pytest.mark.parametrize(("scheme", "is_sent"), [("https", True), ("http", False)])
async def test_browsers_are_to_come_back_over_tls_where_they_came_over_it(scheme, is_sent):
    server = Server()

    async def answer(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    await HttpsOnly(answer)(a_scope() | {"scheme": scheme}, parts(0), server.send)
    headers = dict(server.sent[0]["headers"])
    assert (b"strict-transport-security" in headers) is is_sent


class TestBoundedBody:
    @pytest.mark.parametrize(
        ("path", "limit"),
        [("/v1/fine_tuning/jobs", MAX_BODY_BYTES), ("/v1/files", 100 + MAX_FORM_BYTES)],
    )
    async def test_refuses_an_announced_size_before_any_of_it_is_read(self, path, limit):
        server = Server()
        bounded = BoundedBody(server.app, upload_bytes=100)
        await bounded(a_scope(path, content_length=str(limit + 1)), parts(1), server.send)
        assert (server.sent[0]["status"], server.read) == (413, 0)
        assert b'"code":"request_too_large"' in server.sent[1]["body"]
        await bounded(a_scope(path, content_length=str(limit)), parts(0), server.send)
        assert len(server.sent) == 2

    async def test_stops_a_body_of_unknown_size_where_it_passes_the_limit(self):
        server = Server()
        bounded = BoundedBody(server.app, upload_bytes=100)
        with pytest.raises(HTTPException) as caught:
            await bounded(a_scope(), parts(100), server.send)
        assert caught.value.status_code == 413
        assert server.read == MAX_BODY_BYTES


@pytest.fixture(scope="module")
def tracing() -> None:
    configure_telemetry("test")


@pytest.mark.usefixtures("tracing")
class TestTraced:
    async def test_all_that_a_request_sends_is_of_one_trace(self):
        server = Server()
        await Traced(server.app)(a_scope(), parts(0), server.send)
        await Traced(server.app)(a_scope(), parts(0), server.send)
        first, again, second, _ = (traceparent.split("-")[1] for traceparent in server.traceparents)
        assert first == again != second

    async def test_which_is_the_callers_where_it_names_one(self):
        server = Server()
        await Traced(server.app)(a_scope(traceparent=PARENT), parts(0), server.send)
        assert {traceparent.split("-")[1] for traceparent in server.traceparents} == {PARENT.split("-")[1]}
