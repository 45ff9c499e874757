"""Which processes of a stack run, by what they were started with."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from shared.processes.ending import until
from shared.processes.identity import Identity, marked
from tests.e2e.conftest import Platform
from tests.waiting import PATIENCE_SECONDS

DETACHED = (
    "services.trainer_agent.runner",
    "services.trainer_agent.training.main",
    "services.evaluator.scoring",
    "serving_controller.clients.server",
)
"""What the services start, by a word of its command line, in the order in which a job needs it."""


async def running(platform: Platform, word: str) -> Identity:
    """A process of this stack with `word` in its command line, as soon as there is one."""
    processes: list[Identity] = []

    def is_there() -> bool:
        processes[:] = with_word(platform, word)
        return bool(processes)

    await until(is_there, PATIENCE_SECONDS)
    assert processes, f"no process with {word} in its command line"
    return processes[0]


def with_word(platform: Platform, word: str) -> Iterator[Identity]:
    return (process for process, line in command_lines(platform) if word in line)


def command_lines(platform: Platform) -> Iterator[tuple[Identity, str]]:
    """Every process of the stack, with what it was started with."""
    for process in marked(platform.stack.state.mark):
        with suppress(FileNotFoundError, ProcessLookupError):
            line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            yield process, line.replace(b"\0", b" ").decode()
