"""An engine of serving that answers for the base model and for the candidate: vLLM's inference routes, no others."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import httpx

from services.evaluator.scoring.exchange import AskedPrompt, GivenAnswer
from services.evaluator.scoring.order import Side
from shared.replica_http import route_of

LISTED_TOKENS = 20
"""Number of likeliest tokens that a probe asks for; vLLM lists no more unless it is started to."""
GREEDY: Mapping[str, Any] = {
    "temperature": 0,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
}
"""Sampling parameters, each one named: vLLM takes what is not named from the model's own generation settings."""


class EngineFailed(Exception):
    """The engine did not answer as it was asked to; whoever asked does without it."""


class AnswerEngine(Protocol):
    """Answers prompts for both sides. Each method raises EngineFailed where it cannot."""

    name: str
    """Name of what computes the answers, which is part of a baseline's identity."""

    async def probe(self, side: Side, ids: Sequence[int]) -> dict[int, float]:
        """Return log-probabilities of the likeliest tokens after these, by token id."""

    async def answer(self, side: Side, prompt: AskedPrompt, stops: Sequence[int]) -> GivenAnswer:
        """Answer greedily, up to one of `stops`."""


class VllmEngine:
    """AnswerEngine of one replica. `names`: what it calls each side."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        url: str,
        key: str,
        *,
        name: str,
        names: Mapping[Side, str],
        timeout_seconds: float,
    ) -> None:
        self.name = name
        self._http = http
        self._url = route_of(url, "/v1/completions")
        self._headers = {"authorization": f"Bearer {key}"}
        self._names = names
        self._timeout_seconds = timeout_seconds

    async def probe(self, side: Side, ids: Sequence[int]) -> dict[int, float]:
        body = {
            "prompt": list(ids),
            "max_tokens": 1,
            "logprobs": LISTED_TOKENS,
            "return_tokens_as_token_ids": True,
            "ignore_eos": True,
        }
        return _likeliest(await self._complete(side, body))

    async def answer(self, side: Side, prompt: AskedPrompt, stops: Sequence[int]) -> GivenAnswer:
        body = {
            "prompt": list(prompt.ids),
            "max_tokens": prompt.max_new_tokens,
            "stop_token_ids": list(stops),
            # Ours alone end an answer, whatever else the engine takes for an end.
            "ignore_eos": True,
            "return_token_ids": True,
        }
        return _answer(await self._complete(side, body), prompt, stops)

    async def _complete(self, side: Side, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the only choice of a completion. Raises EngineFailed."""
        asked = {"model": self._names[side], **GREEDY, **body}
        try:
            response = await self._http.post(
                self._url, json=asked, headers=self._headers, timeout=self._timeout_seconds
            )
        except httpx.HTTPError as error:
            raise EngineFailed(f"{self._url}: {type(error).__name__} {error}") from error
        if response.status_code != httpx.codes.OK:
            raise EngineFailed(f"{self._url} {asked['model']}: {response.status_code} {response.text[:200]}")
        try:
            (choice,) = response.json()["choices"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise EngineFailed(f"{self._url}: no completion: {response.text[:200]}") from error
        if not isinstance(choice, dict):
            raise EngineFailed(f"{self._url}: choice is {choice!r:.200}, expected an object")
        return choice


def _likeliest(choice: Mapping[str, Any]) -> dict[int, float]:
    try:
        (listed,) = choice["logprobs"]["top_logprobs"]
        likeliest = {int(token.removeprefix("token_id:")): float(value) for token, value in listed.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineFailed(f"a probe's answer has no likelihoods: {choice!r:.200}") from error
    if not likeliest or not all(math.isfinite(value) for value in likeliest.values()):
        raise EngineFailed(f"a probe's answer has likelihoods that are not finite: {choice!r:.200}")
    return likeliest


def _answer(choice: Mapping[str, Any], prompt: AskedPrompt, stops: Sequence[int]) -> GivenAnswer:
    ids, reason = choice.get("token_ids"), choice.get("finish_reason")
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise EngineFailed(f"an answer has no token ids: {choice!r:.200}")
    if reason == "length":
        # Where its context is too short vLLM allows fewer tokens than were asked for, without a word.
        _require_room(len(ids), prompt)
        return GivenAnswer(ids=tuple(ids), is_cut=True)
    if reason != "stop" or not ids or ids[-1] not in stops:
        raise EngineFailed(f"an answer ended by {reason!r}, expected a token of {list(stops)}, or its length")
    return GivenAnswer(ids=tuple(ids[:-1]), is_cut=False)


def _require_room(length: int, prompt: AskedPrompt) -> None:
    if length != prompt.max_new_tokens:
        expected = f"expected {prompt.max_new_tokens} after a prompt of {len(prompt.ids)}"
        raise EngineFailed(f"an answer was cut after {length} tokens, {expected}: the context has no room")
