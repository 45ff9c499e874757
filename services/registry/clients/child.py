"""A question about a directory of files of strangers, answered by a process of its own with one message."""

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter

from shared.processes.tail import last_lines
from shared.processes.workers import ERRORS, carry_out

Answer = TypeVar("Answer", bound=BaseModel)

TAIL_LINES = 10


class NoVerdict(Exception):
    """The process ended without a verdict; the next try may have one."""


async def answer_of(module: str, directory: Path, kind: type[Answer], *, limit: timedelta) -> Answer:
    """Run `python -m <module> <directory>`. Raises TimeoutError, and NoVerdict where it fails."""
    answers: list[Answer] = []
    with tempfile.TemporaryDirectory() as name:
        work_dir = Path(name)
        code = await carry_out(
            module,
            directory,
            work_dir=work_dir,
            # A folder with a training template of ours has links to the model's own files, which are elsewhere.
            inputs=[directory, *(path.resolve() for path in directory.iterdir())],
            messages=TypeAdapter(kind),
            on_message=answers.append,
            environment={"OMP_NUM_THREADS": "1"},
            limit=limit,
        )
        if code != 0 or not answers:
            tail = "\n".join(last_lines(work_dir / ERRORS, TAIL_LINES))
            raise NoVerdict(f"{module} ended with code {code}: {tail}")
    return answers[-1]
