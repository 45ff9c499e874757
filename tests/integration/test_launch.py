"""What a program's own process does before it becomes the program."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from shared.processes.identity import Identity
from shared.processes.spawn import Detached, ending_with_us, launched
from tests.waiting import PATIENCE_SECONDS

SHOW = ("/bin/sh", "-c", "echo $$; grep -E 'SigIgn' /proc/$$/status; pwd")


def run(argv: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_it_writes_who_it_is_and_becomes_the_program(tmp_path):
    with subprocess.Popen(
        launched(("sleep", "600"), folder=str(tmp_path), pid_file="pid", exit_file="exit")
    ) as leader:
        while not (tmp_path / "pid").exists():
            assert leader.poll() is None
        assert Identity.parse((tmp_path / "pid").read_text()) == Identity.of(leader.pid)
        leader.terminate()  # for the program alone, and the leader is not its group's
        assert leader.poll() is None
        leader.kill()


def test_signals_that_python_ignores_are_not_ignored_by_the_program(tmp_path):
    _, ignored, folder = run(launched(SHOW, folder=str(tmp_path))).stdout.splitlines()
    assert int(ignored.split()[1], 16) & (1 << signal.SIGPIPE - 1) == 0
    assert folder == str(tmp_path)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("/bin/sh", "-c", "exit 7"), 7),
        (("/bin/sh", "-c", "kill -9 $$"), 128 + signal.SIGKILL),
        (("/nowhere",), 127),
    ],
)
def test_the_exit_code_is_kept_as_a_shell_tells_it(tmp_path, command, code):
    argv = launched(command, exit_file=str(tmp_path / "exit-{LOCAL_RANK}"))
    assert run(argv, LOCAL_RANK="3").returncode == code
    assert (tmp_path / "exit-3").read_text() == f"{code}\n"


@pytest.mark.parametrize("file", ["pid", "stopped"])
def test_nothing_starts_where_something_did_or_must_not(tmp_path, file):
    (tmp_path / file).touch()
    options = {"folder": str(tmp_path), "pid_file": "pid", "unless": "stopped"}
    assert run(launched(("touch", "started"), **options)).returncode == 70
    assert not (tmp_path / "started").exists()


def test_nothing_starts_for_a_parent_that_is_gone():
    argv = ending_with_us(("echo", "started"), signal.SIGKILL)
    gone = run(["/bin/sh", "-c", '"$@" & wait', "sh", *argv])
    assert "echo was not started" in gone.stderr
    assert gone.stdout == ""


def test_a_detached_process_leads_a_session_and_is_reaped(tmp_path: Path):
    detached = Detached()
    detached.start(SHOW, tmp_path, environment={"PATH": os.environ["PATH"]}, log="log")
    while detached._pids:
        detached.reap()
    pid = int((tmp_path / "log").read_text().split()[0])
    assert (tmp_path / "pid").read_text().split()[0] == str(pid)
