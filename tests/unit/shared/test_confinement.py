"""What code in a child can read of the process that started it."""

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.confinement import (
    CAP_PERFMON,
    CAP_SYS_ADMIN,
    CAP_SYS_PTRACE,
    PR_CAPBSET_DROP,
)
from shared.processes.spawn import launched, own_files
from tests.landlock import landlock

ROOT = Path(__file__).parents[3]
NOBODY = 65534
CAP_CHECKPOINT_RESTORE = 40
"""The last of the capabilities."""
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


CONFINED = """
import json, os, signal, socket, subprocess, sys, tempfile
from pathlib import Path
home, work, (server, service) = Path(sys.argv[1]), Path(sys.argv[1], "work"), json.loads(sys.argv[2])

def can(act):
    try:
        return act() is not False
    except OSError:
        return False

def by_program(code):
    return subprocess.run([sys.executable, "-c", code], env={}, stderr=subprocess.DEVNULL).returncode == 0

print(json.dumps({
    "reads an input": can((home / "input/file").read_bytes),
    "reads one file": can((home / "one").read_bytes),
    "writes in its directory": can(lambda: (work / "new").write_text("x") and (work / "new").rename(work / "newer")),
    "writes a temporary file": can(lambda: tempfile.TemporaryFile().write(b"x")),
    "starts a program": by_program("pass"),
    "reads of devices": can(lambda: os.urandom(1) and Path("/dev/urandom").open("rb").read(1)),
    "writes an input": can(lambda: (home / "input/file").write_text("x")),
    "reads a login": can((home / "login").read_bytes),
    "follows a link": can((work / "link").read_bytes),
    "links into its directory": can(lambda: os.link(home / "login", work / "linked") or (work / "linked").read_bytes()),
    "reads a login by a program": by_program(f"open({str(home / 'login')!r}).read()"),
    "lists what is beside": can(lambda: os.listdir(home)),
    "writes beside": can(lambda: (home / "new").write_text("x")),
    "removes": can((home / "login").unlink),
    "reads an environment": can(Path(f"/proc/{service}/environ").read_bytes),
    "reads a memory": can(lambda: Path(f"/proc/{service}/mem").open("rb").close()),
    "signals": can(lambda: os.kill(service, 0)),
    "connects": can(lambda: socket.create_connection(tuple(server), 5).close()),
}))
"""
OWN_FILES = {
    "reads an input",
    "reads one file",
    "writes in its directory",
    "writes a temporary file",
    "starts a program",
    "reads of devices",
}


def inputs(home: Path) -> list[Path]:
    return [home / "input", home / "one"]


def without_capabilities() -> None:
    """From the next `exec` on."""
    for capability in range(CAP_CHECKPOINT_RESTORE + 1):
        assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


def done_in(home: Path, become: Callable[[], None] | None = None, **files: Any) -> set[str]:
    """Return what a process does with files, a service and a server beside its own; `files` go to `own_files`."""
    for name in ("work", "input"):
        (home / name).mkdir()
    for name in ("input/file", "one", "login"):
        (home / name).write_text("text")
    (home / "work/link").symlink_to(home / "login")
    service = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            options = {"files": own_files([home / "work"], **files)} if files else {}
            others = json.dumps([server.getsockname(), service.pid])
            child = subprocess.run(
                launched([sys.executable, "-c", CONFINED, str(home), others], **options),
                env={"PYTHONPATH": str(ROOT)},
                preexec_fn=become,
                capture_output=True,
                text=True,
                check=False,
            )
    finally:
        service.communicate(b"\n")
    assert child.returncode == 0, child.stderr
    return {act for act, is_done in json.loads(child.stdout).items() if is_done}


@pytest.mark.skipif(landlock() < 6, reason="the kernel's Landlock has no scopes")
class TestAProcessThatIsConfined:
    def test_has_its_own_files_alone(self, tmp_path):
        assert done_in(tmp_path, reads=inputs(tmp_path)) == OWN_FILES

    def test_reaches_its_peers_where_it_has_some(self, tmp_path):
        assert done_in(tmp_path, reads=inputs(tmp_path), has_peers=True) == OWN_FILES | {"connects"}

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lose")
    def test_has_them_also_as_root_without_capabilities(self, tmp_path):
        """As in a container that drops them all."""
        assert done_in(tmp_path, without_capabilities, reads=inputs(tmp_path)) == OWN_FILES

    def test_would_have_all_of_them_otherwise(self, tmp_path):
        """Or the tests above would show nothing."""
        others = {"writes an input", "reads a login", "follows a link", "removes", "signals", "connects"}
        assert OWN_FILES | others | {"reads an environment"} <= done_in(tmp_path)


def test_without_landlock_a_process_works_and_a_warning_names_what_is_open(tmp_path):
    code = (
        "import shared.confinement as confinement\n"
        "confinement.CREATE_RULESET = 1_000_000\n"
        f"confinement.confine_files([{str(tmp_path)!r}], [])\n"
        f"print(len(open({__file__!r}).read()) > 0)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.stdout == "True\n"
    assert "all files of this user are open to this process: no Landlock" in child.stderr
