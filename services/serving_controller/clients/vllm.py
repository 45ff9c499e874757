"""vLLM's HTTP API. Nobody else may call its management routes."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

LOOK_SECONDS = 5.0
LOAD_SECONDS = 120.0
ANSWER_SECONDS = 120.0


class LoadRefused(RuntimeError):
    """vLLM would not load an adapter; the sentence is its own."""


class NoAnswer(RuntimeError):
    """The replica did not answer: it may be busy, starting or dying."""


@dataclass(frozen=True)
class Answer:
    """How likely a model finds a prompt and what it says next; equal models give equal numbers."""

    prompt_logprobs: tuple[float, ...]
    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]

    def distance(self, other: "Answer") -> float:
        """Largest difference of two log-probabilities, as far as both read the same text."""
        same = 1
        while same < min(len(self.tokens), len(other.tokens)) and self.tokens[:same] == other.tokens[:same]:
            same += 1
        mine = (*self.prompt_logprobs, *self.token_logprobs[:same])
        others = (*other.prompt_logprobs, *other.token_logprobs[:same])
        return max((abs(a - b) for a, b in zip(mine, others, strict=True)), default=0.0)


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

    async def load(self, name: str, path: Path) -> None:
        """Load it, in place of what has that name. Raises LoadRefused, NoAnswer."""
        assert path.is_absolute(), f"{path}: vLLM would take a relative path for a hub's repository"
        await self.unload(name)
        body = {"lora_name": name, "lora_path": str(path)}
        await self._manage("/v1/load_lora_adapter", body)

    async def require_listed(self, name: str) -> None:
        """Read back what was loaded. Raises LoadRefused, NoAnswer."""
        if name not in (found := await self.models()):
            raise LoadRefused(f"{name} was loaded, but the replica lists {', '.join(found)}")

    async def unload(self, name: str) -> None:
        """Nothing happens if it is not loaded. Raises LoadRefused, NoAnswer."""
        await self._manage("/v1/unload_lora_adapter", {"lora_name": name}, accept=404)

    async def answer(self, model: str, prompt: str) -> Answer:
        """Two tokens, greedily: the first comes from reading the prompt, the second from writing on."""
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": 2,
            "temperature": 0,
            "logprobs": 1,
            "prompt_logprobs": 0,
        }
        found = await self._call("POST", "/v1/completions", body, seconds=ANSWER_SECONDS)
        if found.status_code != httpx.codes.OK:
            raise LoadRefused(f"model {model}: {found.status_code} {_message(found)}")
        choice = found.json()["choices"][0]
        return Answer(
            prompt_logprobs=tuple(_logprob(position) for position in choice["prompt_logprobs"][1:]),
            tokens=tuple(choice["logprobs"]["tokens"]),
            token_logprobs=tuple(choice["logprobs"]["token_logprobs"]),
        )

    async def answers(self, questions: list[tuple[str, str]]) -> list[Answer]:
        """Ask all (model, prompt) at once, so that they share batches."""
        return list(await asyncio.gather(*(self.answer(model, prompt) for model, prompt in questions)))

    async def _manage(self, path: str, body: dict[str, str], *, accept: int = 200) -> None:
        found = await self._call("POST", path, body, seconds=LOAD_SECONDS)
        if found.status_code not in (httpx.codes.OK, accept):
            raise LoadRefused(f"{path} {body['lora_name']}: {found.status_code} {_message(found)}")

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, seconds: float
    ) -> httpx.Response:
        try:
            answer = await self._http.request(
                method, self._url + path, json=body, headers=self._headers, timeout=seconds
            )
        except httpx.TransportError as error:
            raise NoAnswer(f"{method} {self._url}{path}: {type(error).__name__} {error}") from error
        if body is None and answer.status_code != httpx.codes.OK:
            raise NoAnswer(f"{method} {self._url}{path}: {answer.status_code}")
        return answer


def _logprob(position: dict[str, dict[str, Any]]) -> float:
    """Of the prompt's own token, the only one asked for."""
    (entry,) = position.values()
    return float(entry["logprob"])


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])[:1000]
    except (ValueError, KeyError, TypeError):
        return answer.text[:1000]
