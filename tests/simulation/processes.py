"""Several simulations at once, each in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def in_parallel(*orders: Sequence[str]) -> list[dict[str, Any]]:
    """What each `python -m tests.simulation <order>` found. Raises AssertionError with what the first broken one said."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.simulation", *order],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for order in orders
    ]  # fmt: skip
    try:
        outputs = [process.communicate() for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (_, errors) in zip(running, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output) for output, _ in outputs]
