"""Every route that vLLM has, asked with no key and with each of the two."""

import re
import warnings
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from schemas.base import DeviceKind
from services.serving_controller.clients import guard
from services.serving_controller.clients.backend import ReplicaSpec
from services.serving_controller.clients.local import Engine
from tests.serving.conftest import engine_on, options_of

pytestmark = pytest.mark.any_device

KEYS = {"inference": "a key", "management": "another key"}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, device: DeviceKind) -> Iterator[Starlette]:
    """vLLM's own, made with the options and the environment that a replica is started with; no engine behind it."""
    engine = engine_on(device)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in engine.environment().items():
            patch.setenv(name, value)
        patch.setenv(guard.INFERENCE_DIGEST, guard.digest_of(KEYS["inference"]))
        patch.setenv(guard.MANAGEMENT_DIGEST, guard.digest_of(KEYS["management"]))
        model_dir = tmp_path_factory.mktemp("model")
        (model_dir / "config.json").write_text("{}")
        app = _build(engine, ReplicaSpec("it", "", model_dir, "tiny", 8))
        # Starlette makes its middlewares with the first request.
        TestClient(app).get("/")
        yield app


def _build(engine: Engine, spec: ReplicaSpec) -> Starlette:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's, of what it imports
        from vllm.entrypoints.launchers.app import build_app

        app: Starlette = build_app(options_of(engine, spec))
    return app


@pytest.fixture(scope="module")
def routes(app: Starlette) -> set[tuple[str, str]]:
    """Method and path; OPTIONS of each, and what several clients spell otherwise."""
    known = {
        (method, re.sub(r"\{[^}]*\}", "x", route.path))
        for route in app.routes
        for method in (*(getattr(route, "methods", None) or ("GET",)), "OPTIONS")
    }
    return known | {("GET", "/v1/models/"), ("POST", "//v1/completions"), ("GET", "/nothing")}


def _status(app: Starlette, method: str, path: str, key: str | None) -> int:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    client = TestClient(app, raise_server_exceptions=False)
    return client.request(method, f"http://replica{path}", headers=headers, json={}).status_code


def test_the_walk_sees_the_routes_that_vllm_leaves_open(routes):
    assert {
        ("POST", "/adapters"),
        ("POST", "/invocations"),
        ("GET", "/metrics"),
        ("POST", "/tokenize"),
    } <= routes
    assert routes >= guard.MANAGEMENT


@pytest.mark.parametrize("key", [None, "", "wrong", guard.digest_of("a key")])
def test_no_route_answers_without_a_key(app, routes, key):
    assert {route: _status(app, *route, key) for route in routes} == dict.fromkeys(routes, 401)


@pytest.mark.parametrize(
    ("name", "opened"), [("inference", guard.INFERENCE), ("management", guard.MANAGEMENT)]
)
def test_a_key_opens_its_own_routes_alone(app, routes, name, opened):
    """What is opened fails behind the guard: there is no engine."""
    statuses = {route: _status(app, *route, KEYS[name]) for route in routes}
    assert {route for route, status in statuses.items() if status != 404} == opened
    assert 401 not in statuses.values()


def test_no_websocket_is_accepted(app):
    client = TestClient(app, headers={"authorization": f"Bearer {KEYS['management']}"})
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/realtime"):
        pass


def test_it_does_not_start_without_its_keys(monkeypatch):
    monkeypatch.delenv(guard.INFERENCE_DIGEST, raising=False)
    with pytest.raises(KeyError, match=guard.INFERENCE_DIGEST):
        guard.Guard(Starlette())
