"""What code in a child can read of the process that started it."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NOBODY = 65534
PR_CAPBSET_DROP = 24
CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON = 19, 21, 38
SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin")
"""Everybody may start it; the virtual environment's may lie in a folder that is closed to other users."""

PARENT = """
import os, subprocess, sys, time
from shared.confinement import keep_memory_private
if sys.argv[1] == "private":
    keep_memory_private()
child = subprocess.run([sys.executable, "-c", sys.argv[2]], env={}, capture_output=True, text=True)
print(child.stdout, child.stderr, end="")
"""
"""Holds a secret in its environment, and starts a child that gets none."""

CHILD = """
import ctypes, json, os
parent = os.getppid()

def can(act):
    try:
        return bool(act())
    except OSError:
        return False

PTRACE_SEIZE = 0x4206  # does not stop the parent

print(json.dumps({
    "environ": can(lambda: b"s3cret" in open(f"/proc/{parent}/environ", "rb").read()),
    "mem": can(lambda: open(f"/proc/{parent}/mem", "rb")),
    "ptrace": can(lambda: ctypes.CDLL(None).ptrace(PTRACE_SEIZE, parent, 0, 0) == 0),
    "fd": can(lambda: os.readlink(f"/proc/{parent}/fd/0")),
}))
"""


def as_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def as_root_without_ptrace() -> None:
    """As root is in a container by default: the bounding set holds from the next `exec` on."""
    for capability in (CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON):
        assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


def read_by_child(mode: str, become: Callable[[], None] | None) -> dict[str, bool]:
    if become is as_nobody and SYSTEM_PYTHON is None:
        pytest.skip("no Python that every user may start")
    python = SYSTEM_PYTHON if become is as_nobody else sys.executable
    parent = subprocess.run(
        [str(python), "-c", PARENT, mode, CHILD],
        env={"KEY": "s3cret", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        preexec_fn=become,
        capture_output=True,
        text=True,
        check=False,
    )
    results: dict[str, bool] = json.loads(parent.stdout or parent.stderr)
    return results


USERS = [None, as_nobody, as_root_without_ptrace] if os.geteuid() == 0 else [None]
WITHOUT_PTRACE = USERS[1:] or USERS
"""Whom a test can become that may not trace just anybody."""


@pytest.mark.parametrize("become", WITHOUT_PTRACE, ids=lambda user: user.__name__ if user else "same user")
class TestAChildOfTheSameUser:
    def test_reads_nothing_of_a_parent_that_keeps_its_memory_private(self, become):
        assert not any(read_by_child("private", become).values())

    def test_reads_the_environment_of_one_that_does_not(self, become):
        """Or the test above would show nothing."""
        assert read_by_child("open", become)["environ"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has the capability")
def test_root_with_all_its_capabilities_reads_it_all_the_same():
    """The limit that docs/security.md names."""
    assert read_by_child("private", None)["environ"]
