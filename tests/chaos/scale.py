"""How large a chaos test is: the small figure in CI, the full one with CHAOS_SCALE=full."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path

from shared.clock import utc_now

CI, FULL = "ci", "full"


def scaled(ci: int, full: int) -> int:
    return full if is_full() else ci


def is_full() -> bool:
    scale = os.environ.get("CHAOS_SCALE", CI)
    if scale not in (CI, FULL):
        raise ValueError(f"CHAOS_SCALE: found {scale!r}, expected {CI!r} or {FULL!r}")
    return scale == FULL


def seed() -> int:
    """Of everything random in a test; CHAOS_SEED repeats a run that failed."""
    return int(os.environ.get("CHAOS_SEED", "1"))


def note(name: str, **figures: float) -> None:
    """Add what a test saw to the file that CHAOS_FIGURES names, one JSON object a line.

    `name` stands beside the test's file in the table of docs/proof/reliability.md, and `tests.chaos.figures` prints its row.
    """
    if path := os.environ.get("CHAOS_FIGURES"):
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        scale = FULL if is_full() else CI
        where = {"name": name, "test": test, "scale": scale, "seed": seed(), "time": utc_now().isoformat()}
        with Path(path).open("a") as file:
            file.write(json.dumps(where | {"commit": _commit(), "figures": figures}) + "\n")


@cache
def _commit() -> str:
    """What was tested; `-dirty` where it differs from the commit."""
    describe = ("git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*")
    return subprocess.run(
        describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()
