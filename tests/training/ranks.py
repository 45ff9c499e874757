"""Training processes forked from one that has imported torch, so that each begins at once: alone, or a gang without torchrun.

How a runner starts them is tried in test_resume.py, test_gang.py and tests/integration/test_torchrun.py.
"""

import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from schemas.base import DeviceKind
from services.trainer_agent.protocol import Report, Saved, TrainingOrder
from services.trainer_agent.training.distributed import joined, own_world
from services.trainer_agent.training.main import main
from shared.ports import free_port
from tests.training.jobs import (
    CHILD,
    Child,
    a_work_dir,
    environment,
    log_in,
    log_of,
    reports_in,
    reports_of,
    start_child,
)
from tests.waiting import PATIENCE_SECONDS

# Its default, which follows the handler that writes the stacks, ends the process.
WRITE_STACKS = signal.SIGUSR2
STACKS_SECONDS = 10

FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(
    ["services.trainer_agent.training.child", "services.trainer_agent.training.distributed", "deepspeed"]
)


def run_gang(directory: Path, order: TrainingOrder) -> tuple[Report, ...]:
    """The reports of the first node; every rank of every node must end well."""
    work_dirs = [a_work_dir(directory / str(node), order) for node in range(order.nodes)]
    with _ranks(work_dirs, order) as ranks:
        for rank in ranks:
            rank.join(PATIENCE_SECONDS)
        if (codes := [rank.exitcode for rank in ranks]) != [0] * len(ranks):
            _log_stacks(ranks)
            logs = "\n".join(log_in(work_dir) for work_dir in work_dirs)
            raise AssertionError(f"{logs}\nexit codes of the ranks: found {codes}, expected only 0")
    return reports_in(work_dirs[0])


def _log_stacks(ranks: Sequence[BaseProcess]) -> None:
    """Let those that still run write into their log, one after the other, where each of their threads is."""
    for rank in ranks:
        if rank.is_alive() and rank.pid is not None:
            os.kill(rank.pid, WRITE_STACKS)
            rank.join(STACKS_SECONDS)


def kill_after_first_bundle(directory: Path, order: TrainingOrder) -> None:
    """SIGKILL to all processes of a node, at any moment after their first bundle is reported."""
    work_dir = a_work_dir(directory, order)
    with _ranks([work_dir], order) as ranks:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reports_of(reports_in(work_dir), Saved):
            assert all(rank.is_alive() for rank in ranks), log_in(work_dir)
            assert time.monotonic() < deadline, log_in(work_dir)
            time.sleep(0.01)


def fork_child(directory: Path, order: TrainingOrder) -> Child:
    """One process without peers, which ends with this one at the latest."""
    if order.device is not DeviceKind.CPU:
        return start_child(directory, order)  # what a process knows of a GPU does not survive a fork
    work_dir = a_work_dir(directory, order)
    process = FORKS.Process(target=_on_one_thread, args=(_run_rank, work_dir, environment()), daemon=True)
    process.start()
    return _Forked(process)


@dataclass(frozen=True)
class _Forked:
    process: BaseProcess

    @property
    def pid(self) -> int:
        assert self.process.pid is not None, "it is started"
        return self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if (code := self.process.exitcode) is None:
            raise subprocess.TimeoutExpired("a forked child", timeout or 0.0)
        return code

    def kill(self) -> None:
        self.process.kill()

    def terminate(self) -> None:
        self.process.terminate()


def in_a_process(target: Callable[..., None], *args: object) -> None:
    """What `target` raises fails the test."""
    process = FORKS.Process(target=_on_one_thread, args=(target, *args))
    process.start()
    process.join(PATIENCE_SECONDS)
    process.kill()
    assert process.exitcode == 0


def in_each_rank(
    target: Callable[..., None], *args: object, nodes: int = 1, devices_per_node: int = 2
) -> None:
    """`target(world, *args)` in processes that have met. What it raises in one of them fails the test."""
    environments = _environments(nodes, devices_per_node)
    with _started(
        [FORKS.Process(target=_on_one_thread, args=(_meet, target, *args, each)) for each in environments]
    ) as ranks:
        running = {rank.sentinel for rank in ranks}
        # Who has failed is waited for by the others.
        while running and not any(rank.exitcode for rank in ranks):
            ended = wait(running, PATIENCE_SECONDS)
            assert ended, "the ranks wait for each other"
            running -= set(ended)
        assert [rank.exitcode for rank in ranks] == [0] * len(ranks)


def _meet(target: Callable[..., None], *args: Any) -> None:
    *others, variables = args
    _set_environment(variables)
    world = own_world(os.environ)
    with joined(world, even_alone=True):
        target(world, *others)


@contextmanager
def _ranks(work_dirs: Sequence[Path], order: TrainingOrder) -> Iterator[list[BaseProcess]]:
    """The started processes of all nodes; at the end those that still run are killed."""
    # What a process knows of a GPU does not survive a fork.
    begin = FORKS.Process if order.device is DeviceKind.CPU else get_context("spawn").Process
    environments = _environments(order.nodes, order.devices_per_node)
    node_of = [work_dir for work_dir in work_dirs for _ in range(order.devices_per_node)]
    with _started(
        [
            begin(target=_on_one_thread, args=(_run_rank, *each))
            for each in zip(node_of, environments, strict=True)
        ]
    ) as ranks:
        yield ranks


def _environments(nodes: int, devices_per_node: int) -> list[dict[str, str]]:
    """By rank, as torchrun sets them."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    size = {"WORLD_SIZE": str(nodes * devices_per_node), "LOCAL_WORLD_SIZE": str(devices_per_node)}
    return [
        environment() | shared | size | {"RANK": str(rank), "LOCAL_RANK": str(rank % devices_per_node)}
        for rank in range(nodes * devices_per_node)
    ]


@contextmanager
def _started(ranks: list[BaseProcess]) -> Iterator[list[BaseProcess]]:
    try:
        for rank in ranks:
            rank.start()
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def _on_one_thread(target: Callable[..., None], *args: object) -> None:
    import torch

    torch.set_num_threads(1)
    target(*args)


def _run_rank(work_dir: Path, variables: dict[str, str]) -> None:
    _set_environment(variables)
    os.dup2(log_of(work_dir), sys.stderr.fileno())
    faulthandler.enable()
    faulthandler.register(WRITE_STACKS, chain=True)
    sys.argv = [CHILD[-1], str(work_dir)]
    main()


def _set_environment(variables: dict[str, str]) -> None:
    """In the place of that of the process that forks, which has what was set when the first test began it."""
    os.environ.clear()
    os.environ.update(variables)
