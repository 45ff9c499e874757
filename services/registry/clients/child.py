"""A question about a directory of files of strangers, answered by a process of its own with one JSON object."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from shared.processes.environment import inherited

REPOSITORY = Path(__file__).resolve().parents[3]
TAIL_BYTES = 1_000


class NoVerdict(Exception):
    """The process ended without a verdict; the next try may have one."""


async def answer_of(module: str, directory: Path, *, seconds: float) -> dict[str, Any]:
    """Run `python -m <module> <directory>`. Raises TimeoutError, and NoVerdict where it fails."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, str(directory)),
        env=inherited() | {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(seconds):
            answer, errors = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode != 0:
        tail = errors[-TAIL_BYTES:].decode(errors="replace").strip()
        raise NoVerdict(f"{module} ended with code {child.returncode}: {tail}")
    content: dict[str, Any] = json.loads(answer)
    return content
