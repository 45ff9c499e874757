"""vLLM's HTTP API as the controller uses it, with its management key (guard.py)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import httpx
from prometheus_client.parser import text_string_to_metric_families

from services.serving_controller.model import Requests
from shared.replica_http import route_of

LOOK_SECONDS = 15.0
LOAD_SECONDS = 120.0
ANSWER_SECONDS = 120.0
REQUESTS = ("vllm:num_requests_running", "vllm:num_requests_waiting")


class LoadRefused(RuntimeError):
    """vLLM would not load an adapter; the sentence is its own."""


class NoAnswer(RuntimeError):
    """The replica did not answer: it may be busy, starting or dying."""


@dataclass(frozen=True)
class Answer:
    """What a model says next, and how likely it finds the likeliest tokens; equal models, equal numbers."""

    tokens: tuple[str, ...]
    """Tokens by id, `token_id:17`: different tokens may read the same."""
    likeliest: tuple[Mapping[str, float], ...]
    """Log-probability by token, at each position."""

    def distance(self, other: "Answer") -> float:
        """Largest difference of two log-probabilities, as far as both continued from the same text."""
        largest = 0.0
        for index in range(min(len(self.tokens), len(other.tokens))):
            largest = max(largest, _apart(self.likeliest[index], other.likeliest[index]))
            if self.tokens[index] != other.tokens[index]:
                break
        return largest


def _apart(mine: Mapping[str, float], others: Mapping[str, float]) -> float:
    """Return how far apart they are at least: a token that one of them does not list is no likelier than its last."""
    my_last, their_last = min(mine.values()), min(others.values())
    return max(
        abs(mine.get(token, my_last) - others.get(token, their_last)) for token in mine.keys() | others.keys()
    )


class VllmClient:
    """One replica's API."""

    def __init__(self, http: httpx.AsyncClient, url: str, key: str) -> None:
        self._http = http
        self._url = url
        self._headers = {"authorization": f"Bearer {key}"}

    async def models(self) -> list[str]:
        """Names that it answers for: of the base model and of each adapter. Raises NoAnswer."""
        await self._call("GET", "/health", seconds=LOOK_SECONDS)
        answer = await self._call("GET", "/v1/models", seconds=LOOK_SECONDS)
        return [model["id"] for model in answer.json()["data"]]

    async def metrics(self) -> str:
        """Return all that it counts, in Prometheus' text format. Raises NoAnswer."""
        return (await self._call("GET", "/metrics", seconds=LOOK_SECONDS)).text

    async def requests(self) -> Requests:
        """Return what it has to answer. Raises NoAnswer, and ValueError where its metrics are none of Prometheus'."""
        counted = dict.fromkeys(REQUESTS, 0.0)
        for family in text_string_to_metric_families(await self.metrics()):
            if family.name in counted:
                counted[family.name] = sum(sample.value for sample in family.samples)
        running, waiting = (int(counted[name]) for name in REQUESTS)
        return Requests(running, waiting)

    async def load(self, name: str, path: Path) -> None:
        """Load it, in place of what has that name. Raises LoadRefused, NoAnswer."""
        assert path.is_absolute(), f"{path}: vLLM would take a relative path for a hub's repository"
        await self.unload(name)
        body = {"lora_name": name, "lora_path": str(path)}
        await self._manage("/v1/load_lora_adapter", body)

    async def require_listed(self, name: str) -> None:
        """Read back what was loaded. Raises LoadRefused, NoAnswer."""
        if name not in (listed_names := await self.models()):
            raise LoadRefused(f"{name} was loaded, but the replica lists {', '.join(listed_names)}")

    async def unload(self, name: str) -> None:
        """Nothing happens if it is not loaded. Raises LoadRefused, NoAnswer."""
        await self._manage("/v1/unload_lora_adapter", {"lora_name": name}, accept=404)

    async def answer(self, model: str, prompt: str) -> Answer:
        """Four tokens, greedily: the first comes from reading the prompt, the others from writing on."""
        # Never `prompt_logprobs`: in a batch with adapters they end the engine of vLLM on CPU.
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": 4,
            "temperature": 0,
            "logprobs": 20,
            "return_tokens_as_token_ids": True,
            "ignore_eos": True,
        }
        response = await self._call("POST", "/v1/completions", body, seconds=ANSWER_SECONDS)
        if response.status_code != httpx.codes.OK:
            await self._refused(f"model {model}", response)
        logprobs = response.json()["choices"][0]["logprobs"]
        return Answer(tuple(logprobs["tokens"]), tuple(logprobs["top_logprobs"]))

    async def _manage(self, path: str, body: dict[str, str], *, accept: int = 200) -> None:
        response = await self._call("POST", path, body, seconds=LOAD_SECONDS)
        if response.status_code not in (httpx.codes.OK, accept):
            await self._refused(f"{path} {body['lora_name']}", response)

    async def _refused(self, asked: str, response: httpx.Response) -> NoReturn:
        """Raises LoadRefused; NoAnswer where the engine died of it."""
        if response.is_server_error:
            await self.models()
        raise LoadRefused(f"{asked}: {response.status_code} {_message(response)}")

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, seconds: float
    ) -> httpx.Response:
        try:
            answer = await self._http.request(
                method, route_of(self._url, path), json=body, headers=self._headers, timeout=seconds
            )
        except httpx.TransportError as error:
            raise NoAnswer(f"{method} {self._url}{path}: {type(error).__name__} {error}") from error
        if body is None and answer.status_code != httpx.codes.OK:
            raise NoAnswer(f"{method} {self._url}{path}: {answer.status_code}")
        return answer


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])[:1000]
    except (ValueError, KeyError, TypeError):
        return answer.text[:1000]
