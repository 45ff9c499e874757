"""The platform as the demo's person uses it: the `retune` command, the openai client, and the topics."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import openai

from cli.commands.watch import line, mark
from ops.connection import find_connection
from schemas.lifecycle import TERMINAL
from shared.messaging.delivery import Delivery
from shared.messaging.reader import TopicReader
from shared.tls import client_context

POLL_SECONDS = 0.25


class DemoFailed(Exception):
    """The platform did not do what the demo is there to show."""


def require(condition: object, sentence: str) -> None:
    if not condition:
        raise DemoFailed(sentence)


@dataclass
class Stopwatch:
    """How long each part of the demo took."""

    seconds: dict[str, float] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _name: str = ""

    def begin(self, name: str) -> None:
        self.end()
        self._name, self._began = name, time.monotonic()
        print(f"\n== {name}", flush=True)

    def end(self) -> None:
        if self._name:
            self.seconds[self._name] = time.monotonic() - self._began


class Platform:
    def __init__(self) -> None:
        connection = find_connection()
        self._login = connection.kafka
        http = openai.DefaultAsyncHttpxClient(verify=client_context(connection.ca_file) or True)
        self.client = openai.AsyncOpenAI(
            base_url=connection.base_url, api_key=connection.api_key, http_client=http
        )

    async def retune(self, *arguments: str) -> str:
        """Run the command line; its stdout."""
        done = await asyncio.to_thread(_run, arguments)
        require(done.returncode == 0, f"retune {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout.strip()

    async def refused(self, *arguments: str) -> str:
        """Run a command that must be refused; the reason that it gave."""
        done = await asyncio.to_thread(_run, arguments)
        require(
            done.returncode == 1, f"retune {' '.join(arguments)} was expected to be refused: {done.stdout}"
        )
        return done.stderr.strip()

    async def read(self, *arguments: str) -> Any:
        return json.loads(await self.retune("--json", *arguments))

    async def request(
        self, method: Literal["GET", "POST", "DELETE"], path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """What the openai client has no name for."""
        answer = dict[str, Any]
        if method == "GET":
            return await self.client.get(path, cast_to=answer)
        send = self.client.post if method == "POST" else self.client.delete
        return await send(path, cast_to=answer, body=body)

    async def upload(self, path: Path) -> str:
        return (await self.client.files.create(file=path, purpose="fine-tune")).id

    async def job(self, job_id: str) -> dict[str, Any]:
        return (await self.client.fine_tuning.jobs.retrieve(job_id)).model_dump()

    async def until(
        self, job_id: str, condition: Callable[[dict[str, Any]], bool], what: str
    ) -> dict[str, Any]:
        """Wait, printing what changes; ends with DemoFailed if the job ends before the condition holds."""
        printed = None
        while not condition(job := await self.job(job_id)):
            state = job["retune"]["state"]
            require(state not in TERMINAL, f"{job_id} {state} before {what}: {job['error']}")
            if mark(job) != printed:
                printed = mark(job)
                print(f"   {line(job)}", flush=True)
            await asyncio.sleep(POLL_SECONDS)
        return job

    async def finished(self, job_id: str) -> dict[str, Any]:
        job = await self.until(job_id, lambda job: job["retune"]["state"] in TERMINAL, "its end")
        require(job["status"] == "succeeded", f"{job_id} {job['status']}: {job['error']}")
        return job

    async def ask(self, model: str, question: str, *, max_tokens: int = 24) -> str:
        reply = await self.client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=max_tokens,
        )
        return (reply.choices[0].message.content or "").strip().split("\n")[0]

    async def events_of(self, job_id: str, topics: list[str]) -> list[Delivery]:
        async with TopicReader(self._login, topics) as reader:
            deliveries = [each async for each in reader.to_the_end() if isinstance(each, Delivery)]
        mine = [each for each in deliveries if getattr(each.message, "job_id", None) == job_id]
        return sorted(mine, key=lambda each: each.envelope.time)


def _run(arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.app", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
