"""Runs `retune` in this process, against an HTTP API and topics that a test makes up."""

import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import pytest

from cli import api, app
from cli.commands import context
from cli.commands import events as events_noun
from cli.commands import parked as parked_noun
from cli.output import Output
from schemas.base import Message
from shared.messaging import reader
from shared.messaging.delivery import Delivery, Unreadable
from tests.builders import delivered

ENVIRONMENT = {
    "RETUNE_BASE_URL": "http://platform.test/v1",
    "RETUNE_API_KEY": "key-of-a-tenant",
    "RETUNE_ADMIN_KEY": "key-of-the-operator",
    "RETUNE_KAFKA_BOOTSTRAP": "kafka.test:9092",
    "RETUNE_KAFKA_USERNAME": "admin",
    "RETUNE_KAFKA_PASSWORD": "secret",
}
Answer = Callable[[httpx.Request], httpx.Response] | Any


@dataclass
class CommandLine:
    """`run` it; `answers` are those of the HTTP API by method and path, `topics` is what Kafka holds."""

    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]
    answers: dict[str, Answer] = field(default_factory=dict)
    topics: list[Delivery | Unreadable] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)
    commands: list[Message] = field(default_factory=list)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        self.patch.setattr(sys, "argv", ["retune", *arguments])
        try:
            app.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        output = self.capture.readouterr()
        return code, output.out, output.err

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        reply = self.answers[f"{request.method} {request.url.path.removeprefix('/v1')}"]
        if callable(reply):
            return reply(request)
        return httpx.Response(200, json=reply)

    def follows(self, *facts: Message) -> None:
        """Facts that the next command causes, whichever it is."""

        async def send(login: Any, command: Message, **_: Any) -> str:
            self.commands.append(command)
            event_id = uuid4().hex
            self.topics += [delivered(fact, correlation_id=event_id) for fact in facts]
            return event_id

        self.patch.setattr(reader, "send", send)

    def reader(self) -> type:
        command_line = self

        class Reader:
            def __init__(self, login: Any, topics: Iterable[str], *, from_end: bool = False) -> None:
                self.topics, self.position = set(topics), len(command_line.topics) if from_end else 0

            async def __aenter__(self) -> "Reader":
                return self

            async def __aexit__(self, *_: object) -> None:
                return None

            async def to_the_end(self) -> AsyncIterator[Delivery | Unreadable]:
                for delivery in command_line.topics[self.position :]:
                    if delivery.record.topic in self.topics:
                        yield delivery

            follow = to_the_end

        return Reader


def paged(*items: Any) -> dict[str, Any]:
    return {"object": "list", "data": list(items), "has_more": False}


def lines(text: str) -> Sequence[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def on(patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> CommandLine:
    for name, value in ENVIRONMENT.items():
        patch.setenv(name, value)
    command_line = CommandLine(patch, capture)
    for cached in (context.connection, context.api, context.admin_api):
        cached.cache_clear()
    transport = httpx.MockTransport(command_line.answer)
    client = httpx.Client
    patch.setattr(api.httpx, "Client", lambda **options: client(**options, transport=transport))
    for module in (reader, events_noun, parked_noun):
        patch.setattr(module, "TopicReader", command_line.reader())
    patch.setattr(Output, "as_json", False)
    return command_line
