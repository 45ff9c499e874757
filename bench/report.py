"""What every benchmark reports: both sides' rounds, their medians, the machine, the versions and the commit."""

import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

RESULTS = Path(__file__).with_name("results")


def machine() -> dict[str, Any]:
    """Shape of the machine, and how busy it is with other things: numbers mean nothing without it."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "processor": _processor(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median, least and greatest of the rounds, and the rounds themselves."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "rounds": list(values),
    }


@dataclass(frozen=True)
class Start:
    """What it took from a start to the first answer."""

    seconds: float
    processor_seconds: float
    memory_mib: float


def summaries(starts: Mapping[str, Sequence[Start]]) -> dict[str, dict[str, Any]]:
    """Of the rounds of each side, a summary of each field."""
    names = [each.name for each in fields(Start)]
    return {
        side: {name: summary([getattr(start, name) for start in rounds]) for name in names}
        for side, rounds in starts.items()
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def write(
    name: str, results: Mapping[str, Any], *, packages: Sequence[str], settings: Mapping[str, Any]
) -> Path:
    """Print the report and keep it as `results/<name>-<date>-<cores>cores.json`."""
    report = {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": machine(),
        "versions": {package: version(package) for package in packages},
        "settings": dict(settings),
        "results": dict(results),
    }
    text = json.dumps(report, indent=1)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{datetime.now(UTC):%Y-%m-%d}-{os.cpu_count()}cores.json"
    path.write_text(text + "\n")
    print(f"written to {path.relative_to(Path.cwd())}", file=sys.stderr)
    return path


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
