"""How large a test of many cases is: small at each change, larger each night, full when its figures are published.

CHAOS_SCALE names the size: change (CI and the default), night or full.
"""

import json
import os
import subprocess
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from shared.clock import utc_now

T = TypeVar("T")


class Scale(StrEnum):
    CHANGE = "change"
    NIGHT = "night"
    FULL = "full"


def scale() -> Scale:
    name = os.environ.get("CHAOS_SCALE", Scale.CHANGE)
    if name not in list(Scale):
        raise ValueError(f"CHAOS_SCALE: found {name!r}, expected {', '.join(Scale)}")
    return Scale(name)


def scaled(change: T, night: T, full: T) -> T:
    return {Scale.CHANGE: change, Scale.NIGHT: night, Scale.FULL: full}[scale()]


def is_full() -> bool:
    return scale() is Scale.FULL


def is_smallest() -> bool:
    return scale() is Scale.CHANGE


def at_night(why: str) -> pytest.MarkDecorator:
    """Skip what would make each change wait, and what others have at each change."""
    return pytest.mark.skipif(is_smallest(), reason=f"{why}: at night")


def seed() -> int:
    """Of everything random in a test; CHAOS_SEED repeats a run that failed."""
    return int(os.environ.get("CHAOS_SEED", "1"))


def note(name: str, **figures: float) -> None:
    """Add what a test saw to the file that CHAOS_FIGURES names, one JSON object a line.

    `name` stands beside the test's file in the table of docs/proof/reliability.md, and `tests.chaos.figures` prints its row.
    """
    if path := os.environ.get("CHAOS_FIGURES"):
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        where = {"name": name, "test": test, "scale": scale(), "seed": seed(), "time": utc_now().isoformat()}
        with Path(path).open("a") as file:
            file.write(json.dumps(where | {"commit": _commit(), "figures": figures}) + "\n")


@cache
def _commit() -> str:
    """What was tested; `-dirty` where it differs from the commit."""
    describe = ("git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*")
    return subprocess.run(
        describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()
