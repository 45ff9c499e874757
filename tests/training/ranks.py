"""A gang without torchrun: ranks forked from one process that has imported torch, each begins at once.

What torchrun does with ranks is tried in test_gang.py and tests/integration/test_torchrun.py.
"""

import os
import sys
import time
from multiprocessing import get_context
from pathlib import Path

from services.trainer_agent.protocol import Report, Saved, TrainingOrder
from services.trainer_agent.training.main import main
from shared.ports import free_port
from tests.training.jobs import (
    CHILD,
    PATIENCE_SECONDS,
    a_work_dir,
    environment,
    log_in,
    log_of,
    reports_in,
    reports_of,
)

FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(
    ["services.trainer_agent.training.child", "services.trainer_agent.training.distributed"]
)


def run_gang(directory: Path, order: TrainingOrder) -> tuple[Report, ...]:
    """The reports of the first node; every rank of every node must end well."""
    work_dirs = [a_work_dir(directory / str(node), order) for node in range(order.nodes)]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    size = {
        "WORLD_SIZE": str(order.nodes * order.devices_per_node),
        "LOCAL_WORLD_SIZE": str(order.devices_per_node),
    }
    ranks = []
    for node, work_dir in enumerate(work_dirs):
        for local in range(order.devices_per_node):
            own = {"RANK": str(node * order.devices_per_node + local), "LOCAL_RANK": str(local)}
            ranks.append(FORKS.Process(target=_run_rank, args=(work_dir, shared | size | own)))
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(PATIENCE_SECONDS)
        logs = "\n".join(log_in(work_dir) for work_dir in work_dirs)
        assert [rank.exitcode for rank in ranks] == [0] * len(ranks), logs
    finally:
        for rank in ranks:
            if rank.is_alive():
                rank.kill()
    return reports_in(work_dirs[0])


def kill_after_first_bundle(directory: Path, order: TrainingOrder) -> None:
    """SIGKILL to a process that trains alone, at any moment after its first bundle is reported."""
    work_dir = a_work_dir(directory, order)
    process = FORKS.Process(target=_run_rank, args=(work_dir, {}))
    process.start()
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reports_of(reports_in(work_dir), Saved):
            assert process.is_alive(), log_in(work_dir)
            assert time.monotonic() < deadline, log_in(work_dir)
            time.sleep(0.01)
    finally:
        process.kill()
        process.join()


def _run_rank(work_dir: Path, rank: dict[str, str]) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.update(environment() | rank)
    os.dup2(log_of(work_dir), sys.stderr.fileno())
    sys.argv = [CHILD[-1], str(work_dir)]
    main()
