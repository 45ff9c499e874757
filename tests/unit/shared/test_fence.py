"""A process that computes on leased devices ends itself with its lease, and what it started with it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from schemas.base import DeviceKind
from shared.device_leases import fence
from shared.device_leases.lease import HeldLease
from tests.waiting import PATIENCE_SECONDS

PROGRAM = """
import subprocess, sys, time
from shared.device_leases.fence import end_with_lease
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
end_with_lease()
print(child.pid, flush=True)
time.sleep(60)
"""


@contextmanager
def computing(lease: Path | None) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a process that was started with the lease, and the pid of its child."""
    environment = {"PYTHONPATH": str(Path(fence.__file__).parents[2])}
    if lease is not None:
        environment[fence.VARIABLE] = str(lease)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    with process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(process: subprocess.Popen[str], child: int) -> bool:
    code = process.wait(PATIENCE_SECONDS)
    until = time.monotonic() + PATIENCE_SECONDS
    while is_running(child) and time.monotonic() < until:
        time.sleep(0.05)
    return code == -signal.SIGKILL and not is_running(child)


def test_a_lease_that_is_over_ends_the_process_and_what_it_started(tmp_path: Path):
    lease = tmp_path / "lease"
    fence.extend(lease, 3600)
    with computing(lease) as (process, child):
        assert process.poll() is None
        fence.extend(lease, 0)
        assert ends(process, child)


def test_a_lease_that_is_extended_lets_it_run_on(tmp_path: Path):
    lease = tmp_path / "lease"
    fence.extend(lease, 3600)
    with computing(lease) as (process, child):
        fence.extend(lease, 2)
        fence.extend(lease, 3600)
        time.sleep(3)
        assert process.poll() is None
        assert is_running(child)


@pytest.mark.parametrize("text", ["", "soon"], ids=["empty", "no number"])
def test_what_cannot_be_read_ends_it_at_the_time_that_was_read_before(tmp_path: Path, text: str):
    lease = tmp_path / "lease"
    fence.extend(lease, 3)
    with computing(lease) as (process, child):
        time.sleep(2 * fence.LOOK_SECONDS)
        lease.write_text(text)
        assert ends(process, child)


def test_a_process_without_a_lease_runs_for_as_long_as_it_likes():
    with computing(None) as (process, _):
        time.sleep(2 * fence.LOOK_SECONDS)
        assert process.poll() is None


def test_a_process_sees_the_gpus_of_its_lease_in_the_order_of_the_bus():
    lease = HeldLease("scoring-1", "lease-1", devices=(0, 3), device=DeviceKind.CUDA)
    assert lease.environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,3"}
    assert HeldLease("scoring-1", "lease-1", devices=(0,), device=DeviceKind.CPU).environment == {}
