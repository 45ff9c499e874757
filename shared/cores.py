"""How many cores this process may use: as it is bound to them, and as its control group pays for them."""

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def usable_cores(*, cgroups: Path = CGROUPS, own_cgroup: Path = OWN_CGROUP) -> int:
    """Whole cores, at least one. Control groups of version 2; elsewhere only those that it is bound to count."""
    shares = [_share(folder) for folder in _folders(cgroups, own_cgroup)]
    return max(1, int(min([len(os.sched_getaffinity(0)), *shares])))


def _folders(cgroups: Path, own_cgroup: Path) -> Iterator[Path]:
    """The process's group and those around it, each of which may have a limit."""
    for line in _read(own_cgroup).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder = cgroups / path.lstrip("/")
            yield from (folder, *(each for each in folder.parents if each.is_relative_to(cgroups)))


def _share(folder: Path) -> float:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() else float("inf")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
