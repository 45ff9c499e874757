"""Processes are told apart by their start time, and ended with all that belongs to them."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from shared.processes.ending import end, kill_all, kill_marked
from shared.processes.identity import Identity, marked, recorded, signal_marked
from tests.waiting import PATIENCE_SECONDS

# All end with their standard input, which is ours.
WORKER = "import sys; print('up', flush=True); sys.stdin.read()"
# It starts a process in its group that lost the mark, and waits.
LEADER = f"""
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", {WORKER!r}], env={{}}, stdout=subprocess.PIPE)
worker.stdout.readline()
print(worker.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def mark() -> str:
    return f"RETUNE_TEST={uuid4().hex}"


@pytest.fixture
def start(mark: str) -> Iterator:
    """Start a leader of a session that carries the mark; it and the pid of its worker."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str = LEADER) -> tuple[subprocess.Popen[str], int]:
        name, _, value = mark.partition("=")
        leader = subprocess.Popen(
            [sys.executable, "-c", script],
            env={name: value},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(leader)
        assert leader.stdout is not None
        line = leader.stdout.readline()
        return leader, int(line) if line.strip().isdigit() else 0

    yield start
    for leader in started:
        leader.communicate(timeout=PATIENCE_SECONDS)


def identity_of(pid: int) -> Identity:
    identity = Identity.of(pid)
    assert identity is not None
    return identity


@contextmanager
def open_process(pid: int) -> Iterator[Callable[[], bool]]:
    """Whether it ended, as the kernel tells within our patience."""
    descriptor = os.pidfd_open(pid)
    yield lambda: bool(select.select([descriptor], [], [], PATIENCE_SECONDS)[0])
    os.close(descriptor)


def test_a_process_is_who_its_pid_file_names():
    own = identity_of(os.getpid())
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert str(own) == f"{os.getpid()} {fields[19]}"
    assert Identity.parse(f"{own}\n") == own
    assert own.is_alive()


def test_a_name_with_brackets_and_spaces_does_not_shift_the_fields(start):
    renaming = f"open('/proc/self/comm', 'w').write('a) R (b'); {WORKER}"
    leader, _ = start(renaming)
    assert Path(f"/proc/{leader.pid}/comm").read_text() == "a) R (b\n"
    assert identity_of(leader.pid).start >= identity_of(os.getpid()).start


def test_a_zombie_is_nobody(start):
    leader, _ = start()
    identity = identity_of(leader.pid)
    os.killpg(leader.pid, signal.SIGKILL)
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{leader.pid}/stat").exists()
    assert not identity.is_alive()
    assert Identity.of(leader.pid) is None


def test_a_recycled_pid_gets_no_signal_and_has_no_session(start):
    leader, worker = start()
    former = Identity(leader.pid, identity_of(leader.pid).start - 1)
    assert not former.is_alive()
    former.signal_group(signal.SIGKILL)
    former.signal_alone(signal.SIGKILL)
    assert list(former.session()) == []
    assert Identity.of(leader.pid)
    assert Identity.of(worker)


def test_a_leader_is_signalled_with_its_group_or_alone(start):
    first, survivor = start()
    identity_of(first.pid).signal_alone(signal.SIGTERM)
    assert first.wait(PATIENCE_SECONDS) == -signal.SIGTERM

    second, victim = start()
    with open_process(victim) as ended:
        identity_of(second.pid).signal_group(signal.SIGTERM)
        assert second.wait(PATIENCE_SECONDS) == -signal.SIGTERM
        assert ended()
    assert Identity.of(survivor)


def test_one_that_leads_no_group_is_signalled_alone(start):
    leader, worker = start()
    identity_of(worker).signal_group(signal.SIGKILL)
    assert identity_of(leader.pid).is_alive()


def test_a_mark_finds_those_that_carry_it_and_a_session_those_that_lost_it(start, mark):
    leader, worker = start()
    assert [process.pid for process in marked(mark)] == [leader.pid]
    assert {process.pid for process in identity_of(leader.pid).session()} == {leader.pid, worker}


def test_nobody_finds_himself_by_a_mark():
    first = Path("/proc/self/environ").read_bytes().split(b"\0")[0].decode()
    assert os.getpid() not in {process.pid for process in marked(first)}


def test_those_who_ignore_a_polite_signal_are_killed(start, mark):
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WORKER}"
    leader, _ = start(stubborn)
    signal_marked(mark, signal.SIGTERM)
    assert identity_of(leader.pid).is_alive()
    assert kill_marked(mark, timeout_seconds=PATIENCE_SECONDS) == []
    assert leader.wait(PATIENCE_SECONDS) == -signal.SIGKILL


async def test_those_who_do_not_end_within_their_grace_are_killed_and_named(start):
    stubborn, _ = start(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WORKER}")
    polite, _ = start()
    gone = Identity(polite.pid, 0)
    identities = [identity_of(stubborn.pid), identity_of(polite.pid), gone]
    killed = await end(identities, grace_seconds=0.5, first=signal.SIGTERM)
    assert killed == [identities[0]]
    assert stubborn.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    assert polite.wait(PATIENCE_SECONDS) == -signal.SIGTERM


def test_recorded_are_those_whose_pid_file_is_whole(tmp_path):
    for name, text in {"a/1": "12 34\n", "b": "56", "c": ""}.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "pid").write_text(text)
    assert recorded(tmp_path) == [Identity(12, 34)]


def test_the_session_of_a_dead_leader_is_still_found_in_every_group(start):
    leader, worker = start(LEADER.replace("env={}", "env={}, process_group=0"))
    led = identity_of(leader.pid)
    leader.kill()
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    assert [process.pid for process in led.session()] == [worker]
    leader.wait(PATIENCE_SECONDS)
    assert kill_all(led.session, timeout_seconds=PATIENCE_SECONDS) == []
    assert Identity.of(worker) is None


def test_those_that_would_not_go_are_named(start):
    leader, _ = start()
    unreachable = Identity(leader.pid, 0)
    assert kill_all(lambda: [unreachable], timeout_seconds=0.05) == [leader.pid]
