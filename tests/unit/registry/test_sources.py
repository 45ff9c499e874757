import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from pydantic import SecretStr

from services.registry.clients import HuggingFaceHub
from services.registry.clients.sources import HubUnavailable
from services.registry.decide.base_models import BadBaseModel

TOKEN = "hf_only-for-this-test"


class Hub(HTTPServer):
    """Has no repository, or says of one which files it has; remembers what it was asked with."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.authorizations: list[str | None] = []
        self.siblings: list[dict[str, object]] | None = None
        self.status = 404


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self.server.authorizations.append(self.headers["authorization"])
        siblings = self.server.siblings if "/revision/" in self.path and "blobs=true" in self.path else None
        self.send_response(self.server.status if siblings is None else 200)
        self.end_headers()
        if siblings is not None:
            self.wfile.write(json.dumps({"id": "org/tiny", "siblings": siblings}).encode())

    do_HEAD = do_GET  # noqa: N815 http.server's name

    def log_message(self, *_: object) -> None:
        """A test's output is its own."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("token", "sent"), [(TOKEN, f"Bearer {TOKEN}"), ("", None)])
def test_a_hub_is_asked_with_the_token_and_nobody_else_gets_it(hub, tmp_path, caplog, token, sent):
    known = HuggingFaceHub(f"http://127.0.0.1:{hub.server_port}", SecretStr(token))
    with pytest.raises(Exception, match="404") as refused:
        known.download("org/gated", "0" * 40, tmp_path)
    assert set(hub.authorizations) == {sent}
    assert TOKEN not in f"{refused.value!r} {refused.value} {known.__dict__} {caplog.text}"


def test_a_hub_says_how_large_the_files_are_that_would_be_fetched(hub):
    names = {"config.json": 10, "model.safetensors": 2**40, "README.md": 5, "original/model.safetensors": 9}
    hub.siblings = [{"rfilename": name, "size": size} for name, size in names.items()]
    known = HuggingFaceHub(f"http://127.0.0.1:{hub.server_port}", SecretStr(TOKEN))
    assert known.sizes("org/tiny", "0" * 40) == {"config.json": 10, "model.safetensors": 2**40}
    assert set(hub.authorizations) == {f"Bearer {TOKEN}"}


def test_a_hub_that_names_no_size_is_refused(hub):
    hub.siblings = [{"rfilename": "model.safetensors"}]
    known = HuggingFaceHub(f"http://127.0.0.1:{hub.server_port}")
    with pytest.raises(BadBaseModel, match="the hub names no size"):
        known.sizes("org/tiny", "0" * 40)


@pytest.fixture
def no_pauses(monkeypatch) -> None:
    """Of the hub's own client, between its tries."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)


@pytest.mark.parametrize("status", [500, 503, 504])
def test_a_hub_that_answers_with_a_server_error_is_away(hub, tmp_path, no_pauses, status):
    hub.status = status
    known = HuggingFaceHub(f"http://127.0.0.1:{hub.server_port}")
    with pytest.raises(HubUnavailable):
        known.download("org/model", "0" * 40, tmp_path)
    with pytest.raises(HubUnavailable):
        known.sizes("org/model", "0" * 40)


def test_a_hub_that_nobody_answers_for_is_away(hub, tmp_path, no_pauses):
    port = hub.server_port
    hub.shutdown()
    hub.server_close()
    with pytest.raises(HubUnavailable):
        HuggingFaceHub(f"http://127.0.0.1:{port}").download("org/model", "0" * 40, tmp_path)


def test_a_repository_that_is_not_there_is_no_absence_of_the_hub(hub, tmp_path):
    with pytest.raises(Exception, match="404") as refused:
        HuggingFaceHub(f"http://127.0.0.1:{hub.server_port}").download("org/none", "0" * 40, tmp_path)
    assert not isinstance(refused.value, HubUnavailable)
