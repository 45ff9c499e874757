"""Every method of the installed `openai` package is served, or answers that it is not available."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai._resource import SyncAPIResource
from starlette.testclient import TestClient

from services.gateway import deps
from services.gateway.app import api
from services.gateway.errors import ApiError

CHAT = {f"chat.completions.{name}" for name in ("create", "parse", "stream")}
SERVED = {
    *(CHAT | {f"beta.{name}" for name in CHAT}),
    "completions.create",
    *(f"files.{name}" for name in ("create", "retrieve", "list", "delete", "content", "retrieve_content")),
    "files.wait_for_processing",
    # The client uploads the file first.
    *("vector_stores.files.upload", "vector_stores.files.upload_and_poll"),
    *(f"fine_tuning.jobs.{name}" for name in ("create", "retrieve", "list", "cancel", "pause", "resume")),
    *("fine_tuning.jobs.list_events", "fine_tuning.jobs.checkpoints.list"),
    *("models.retrieve", "models.list", "models.delete"),
    *(
        f"webhooks.{name}"
        for name in ("create", "retrieve", "update", "list", "delete", "rotate_secret", "test")
    ),
    "webhooks.event_types.list",
    *("uploads.create", "uploads.cancel", "uploads.complete", "uploads.parts.create"),
}
"""What these answer is tried by `tests/integration`."""


def methods(resource: Any, path: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in dir(type(resource)):
        member = inspect.getattr_static(type(resource), name)
        if name.startswith(("_", "with_")):
            continue
        if inspect.isfunction(member):
            yield f"{path}.{name}", getattr(resource, name)
        elif type(member).__name__ in ("property", "cached_property"):
            part = getattr(resource, name)
            if isinstance(part, SyncAPIResource):
                yield from methods(part, f"{path}.{name}")


def outcome(method: Callable[..., Any]) -> str:
    """Code of the error that a call is answered by; the client's own error where it sends nothing."""
    required = {
        parameter.name: b"x" if parameter.name in ("file", "data") else "id-1"
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    try:
        answer = method(**required)
        if hasattr(answer, "__enter__"):
            with answer:
                pass
    except openai.APIStatusError as error:
        return str(error.code)
    except Exception as error:  # noqa: BLE001 - whatever the client finds wrong with these arguments
        return repr(error)
    return repr(answer)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    def nobody() -> None:
        raise ApiError(401, "this test knows nobody", code="served")

    app = api()
    app.dependency_overrides |= {deps.gateway: lambda: None, deps.principal: nobody}
    http = TestClient(app, base_url="http://gateway/v1")
    client = openai.OpenAI(
        api_key="x", admin_api_key="x", base_url="http://gateway/v1", max_retries=0, http_client=http
    )
    with warnings.catch_warnings(action="ignore"):
        resources = [(name, getattr(client, name)) for name in dir(type(client)) if name[0] != "_"]
        return {
            method_name: outcome(method)
            for name, resource in resources
            if isinstance(resource, SyncAPIResource)
            for method_name, method in methods(resource, name)
        }


def test_what_is_served_is_this(outcomes: dict[str, str]):
    assert {name for name, code in outcomes.items() if code == "served"} == SERVED


def test_all_else_is_not_available(outcomes: dict[str, str]):
    answered = {name: code for name, code in outcomes.items() if code in ("served", "not_available_yet")}
    assert len(answered) > 400
    served = {name.partition(".")[0] for name in SERVED} - {"beta", "vector_stores"}
    # Of other resources some methods open a WebSocket, or take arguments that cannot be guessed; the rest answers.
    assert {name for name in outcomes.keys() - answered.keys() if name.partition(".")[0] in served} == {
        "uploads.upload_file_chunked",  # it calls the others
        *("webhooks.unwrap", "webhooks.verify_signature"),  # they send nothing
    }
