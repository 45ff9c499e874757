"""The number of cores that this process may use, by its CPU affinity and the quota of its control group."""

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def usable_cores(*, cgroups: Path = CGROUPS, own_cgroup: Path = OWN_CGROUP) -> int:
    """Return the whole cores, at least one. Without control groups of version 2, only the CPU affinity counts."""
    shares = [_share(folder) for folder in _folders(cgroups, own_cgroup)]
    return max(1, int(min([len(os.sched_getaffinity(0)), *shares])))


def _folders(cgroups: Path, own_cgroup: Path) -> Iterator[Path]:
    """Yield the process's group and its ancestors, each of which may have a limit."""
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
