"""How large a chaos test is: the small figure in CI, the full one with CHAOS_SCALE=full."""

import json
import os
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


def note(test: str, **figures: float) -> None:
    """Add what a test measured to the file that CHAOS_FIGURES names, one JSON object a line."""
    if path := os.environ.get("CHAOS_FIGURES"):
        with Path(path).open("a") as file:
            json.dump({"test": test, "seed": seed(), "time": utc_now().isoformat(), **figures}, file)
            file.write("\n")
