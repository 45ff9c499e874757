"""What every AnswerEngine must do, as tests, and a replica that computes by a rule and can be made to fail.

A file gives a subclass of the suite with one fixture, `endpoint`: where vLLM's API is, and what it calls its models.
"""

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from services.evaluator.clients.engine import EngineFailed, VllmEngine
from services.evaluator.scoring.exchange import AskedPrompt
from services.evaluator.scoring.order import Side
from tests.waiting import PATIENCE_SECONDS

VOCABULARY = 97
STEPS = {"tiny": 1, "gate-1@x": 2}
"""By which token the next one is greater than the last, by model."""


@dataclass
class Replica:
    """`/v1/completions` as vLLM's; each model's next token is its step after the last one."""

    key: str = "key"
    context_tokens: int = 200
    answers_left: int | None = None
    """It hangs up on whatever comes after so many answers."""
    under_way: int = 0
    most_under_way: int = 0
    barrier: threading.Barrier | None = None
    """Answers wait here for each other."""
    bodies: list[dict] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def complete(self, body: dict) -> tuple[int, dict]:
        if body["model"] not in STEPS:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        if len(body["prompt"]) >= self.context_tokens:
            return 400, {"error": {"message": f"at most {self.context_tokens} tokens"}}
        # As vLLM does, without a word.
        body["max_tokens"] = min(body["max_tokens"], self.context_tokens - len(body["prompt"]))
        ids, reason = list(self._tokens(body))
        if "logprobs" in body:
            listed = {f"token_id:{token}": -math.log(2.0 + abs(token - ids[0])) for token in range(20)}
            return 200, {"choices": [{"logprobs": {"top_logprobs": [listed]}, "finish_reason": reason}]}
        return 200, {"choices": [{"token_ids": ids, "finish_reason": reason}]}

    def _tokens(self, body: dict) -> tuple[list[int], str]:
        ids, last = [], body["prompt"][-1]
        while len(ids) < body["max_tokens"]:
            last = (last + STEPS[body["model"]]) % VOCABULARY
            ids.append(last)
            if last in body.get("stop_token_ids", ()):
                return ids, "stop"
        return ids, "length"

    @contextmanager
    def answering(self) -> Iterator[bool]:
        """Whether this answer is one that it gives."""
        with self._lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            gives = self.answers_left is None or self.answers_left > 0
            self.answers_left = None if self.answers_left is None else self.answers_left - 1
        try:
            yield gives
        finally:
            with self._lock:
                self.under_way -= 1

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Its address."""
        server = _Server(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Whoever asked has hung up; the tests look at what it made of that."""


def _handler(replica: Replica) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            replica.bodies.append(body)
            with replica.answering() as gives:
                if replica.barrier:
                    replica.barrier.wait(timeout=PATIENCE_SECONDS)
                answer = self._answer(body) if gives else None
            # It is under way no longer: who has the answer may ask again at once.
            if answer is None:
                self.close_connection = True
            else:
                self._send(*answer)

        def _answer(self, body: dict) -> tuple[int, dict]:
            if self.headers["authorization"] != f"Bearer {replica.key}":
                return 401, {"error": "Unauthorized"}
            return replica.complete(body)

        def _send(self, status: int, answer: dict) -> None:
            raw = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@dataclass(frozen=True)
class Endpoint:
    url: str
    key: str
    names: dict[Side, str]
    prompt: tuple[int, ...]
    context_tokens: int

    def engine(self, http: httpx.AsyncClient, **changes) -> VllmEngine:
        settings = {"name": "vllm 1", "names": self.names, "timeout_seconds": 60.0} | changes
        return VllmEngine(http, self.url, settings.pop("key", self.key), **settings)


class AnswerEngineSuite:
    @pytest.fixture
    async def http(self):
        async with httpx.AsyncClient() as http:
            yield http

    async def test_an_answer_ends_at_its_budget_and_is_cut(self, endpoint: Endpoint, http):
        answer = await endpoint.engine(http).answer(Side.BASE, asked(endpoint, 5), ())
        assert (len(answer.ids), answer.is_cut) == (5, True)

    async def test_an_answer_ends_before_a_stop_and_is_whole(self, endpoint: Endpoint, http):
        engine = endpoint.engine(http)
        longer = await engine.answer(Side.CANDIDATE, asked(endpoint, 6), ())
        stop = longer.ids[3]
        first = longer.ids.index(stop)
        answer = await engine.answer(Side.CANDIDATE, asked(endpoint, 6), (stop,))
        assert (answer.ids, answer.is_cut) == (longer.ids[:first], False)

    async def test_the_same_question_has_the_same_answer(self, endpoint: Endpoint, http):
        engine = endpoint.engine(http)
        answers = [await engine.answer(Side.CANDIDATE, asked(endpoint, 8), ()) for _ in range(2)]
        assert answers[0] == answers[1]

    async def test_a_probe_lists_the_likeliest_tokens_and_tells_the_sides_apart(
        self, endpoint: Endpoint, http
    ):
        engine = endpoint.engine(http)
        base, candidate = [await engine.probe(side, endpoint.prompt) for side in (Side.BASE, Side.CANDIDATE)]
        assert 1 < len(base) <= 21
        assert all(math.isfinite(value) and value <= 0 for value in base.values())
        assert base != candidate

    async def test_a_model_that_is_not_there_fails(self, endpoint: Endpoint, http):
        engine = endpoint.engine(http, names={Side.BASE: "nobody"})
        with pytest.raises(EngineFailed, match="404"):
            await engine.answer(Side.BASE, asked(endpoint, 5), ())

    async def test_a_wrong_key_fails(self, endpoint: Endpoint, http):
        with pytest.raises(EngineFailed, match="401"):
            await endpoint.engine(http, key="wrong").probe(Side.BASE, endpoint.prompt)

    async def test_an_answer_without_room_fails(self, endpoint: Endpoint, http):
        with pytest.raises(EngineFailed, match="the context has no room"):
            await endpoint.engine(http).answer(Side.BASE, asked(endpoint, endpoint.context_tokens), ())

    async def test_a_prompt_without_room_fails(self, endpoint: Endpoint, http):
        prompt = AskedPrompt(ids=endpoint.prompt * endpoint.context_tokens, max_new_tokens=1)
        with pytest.raises(EngineFailed, match="400"):
            await endpoint.engine(http).answer(Side.BASE, prompt, ())

    async def test_a_slow_answer_fails(self, endpoint: Endpoint, http):
        with pytest.raises(EngineFailed, match="Timeout"):
            await endpoint.engine(http, timeout_seconds=1e-4).answer(Side.BASE, asked(endpoint, 5), ())


def asked(endpoint: Endpoint, max_new_tokens: int) -> AskedPrompt:
    return AskedPrompt(ids=endpoint.prompt, max_new_tokens=max_new_tokens)
