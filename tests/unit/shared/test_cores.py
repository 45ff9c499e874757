"""Cores that a process may use, in a made-up tree of control groups."""

import os
from pathlib import Path

import pytest

from shared.cores import usable_cores


@pytest.mark.parametrize(
    ("own", "limits", "cores"),
    [
        ("0::/", {}, 16),
        ("0::/pod/app", {"pod/app": "max 100000"}, 16),
        ("0::/pod/app", {"pod/app": "400000 100000"}, 4),
        ("0::/pod/app", {"pod": "200000 100000", "pod/app": "400000 100000"}, 2),
        ("0::/", {".": "350000 100000"}, 3),
        ("0::/", {".": "50000 100000"}, 1),
        ("0::/", {".": "3200000 100000"}, 16),
        ("4:cpu,cpuacct:/app", {"app": "100000 100000"}, 16),
    ],
)
def test_the_least_of_what_it_is_bound_to_and_what_each_group_may_use(
    own: str, limits: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    (tmp_path / "own").write_text(f"{own}\n")
    for group, limit in limits.items():
        folder = tmp_path / "groups" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.max").write_text(f"{limit}\n")
    assert usable_cores(cgroups=tmp_path / "groups", own_cgroup=tmp_path / "own") == cores


def test_where_nothing_is_said_of_groups_it_is_what_it_is_bound_to(tmp_path: Path):
    assert usable_cores(cgroups=tmp_path, own_cgroup=tmp_path / "none") == len(os.sched_getaffinity(0))
