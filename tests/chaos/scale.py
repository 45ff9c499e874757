"""How large a chaos test is: the small figure in CI, the full one with CHAOS_SCALE=full."""

import os

CI, FULL = "ci", "full"


def scaled(ci: int, full: int) -> int:
    scale = os.environ.get("CHAOS_SCALE", CI)
    if scale not in (CI, FULL):
        raise ValueError(f"CHAOS_SCALE: found {scale!r}, expected {CI!r} or {FULL!r}")
    return full if scale == FULL else ci


def seed() -> int:
    """Of everything random in a test; CHAOS_SEED repeats a run that failed."""
    return int(os.environ.get("CHAOS_SEED", "1"))
