"""The training child: one process, or torchrun and several, watched through files and never through their output."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from schemas.training import Member, StartTraining
from services.trainer_agent.protocol import (
    RENDEZVOUS,
    REPORTS,
    STOP,
    Report,
    TrainingOrder,
    counted_after,
    parse_reports,
)
from services.trainer_agent.runner.gang import LOOPBACK
from services.trainer_agent.runner.settings import Settings
from shared.files import write_whole
from shared.processes import spawn
from shared.processes.ending import kill_marked
from shared.processes.environment import inherited
from shared.processes.identity import signal_marked
from shared.processes.orders import write_order

EXIT_FILE = "exit-{LOCAL_RANK}"
DUMP_SECONDS = 2.0
KILL_SECONDS = 10.0
SHUTDOWN_SECONDS = 5
GLOO_INTERFACE, NCCL_INTERFACE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def mark(node_id: str) -> str:
    """Return what every process below the runner carries in its environment, and the runner does not."""
    return f"RUNNER_CHILD_OF={node_id}"


def needs_torchrun(settings: Settings, start: StartTraining) -> bool:
    """Return whether the child has peers to meet; without, torchrun only costs seconds at its start and its end."""
    return settings.child_argv is None and start.nodes * start.devices_per_node > 1


def argv_of(settings: Settings, start: StartTraining, port: int | None) -> list[str]:
    """Return the child's command. Restarts are the scheduler's.

    `port`: of this machine's loopback, where its processes meet the others. None: they meet at member 0, as those of
    an older release do.
    """
    child = [sys.executable, "-m", "services.trainer_agent.training.main", str(settings.work_dir)]
    if settings.child_argv is not None:
        return [*settings.child_argv, str(settings.work_dir)]
    if not needs_torchrun(settings, start):
        return child
    # torchrun's own exit code does not show how a process of it ended.
    child = spawn.launched(child, exit_file=str(settings.work_dir / EXIT_FILE))
    return [
        *_launcher(settings, start.members[0], port),
        *("--nnodes", str(start.nodes), "--nproc-per-node", str(start.devices_per_node)),
        *("--max-restarts", "0", "--shutdown-timeout", str(SHUTDOWN_SECONDS)),
        *("--no-python", *child),
    ]


def _launcher(settings: Settings, first: Member, port: int | None) -> list[str]:
    rank = str(settings.node_index)
    if port is None:
        return [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--node-rank", rank, "--local-addr", settings.host),
            *("--master-addr", first.host, "--master-port", str(first.port)),
        ]
    return [
        *(sys.executable, "-m", "services.trainer_agent.training.launch"),
        *("--rdzv-backend", RENDEZVOUS, "--rdzv-endpoint", f"{LOOPBACK}:{port}"),
        *("--rdzv-conf", f"rank={rank}"),
    ]


def environment_of(settings: Settings, start: StartTraining) -> dict[str, str]:
    """Return the environment of the child, without a key: it talks to nobody but its peers."""
    threads = settings.omp_num_threads or max(1, (os.cpu_count() or 1) // start.devices_per_node)
    name, _, value = mark(settings.node_id).partition("=")
    is_alone = start.nodes == 1
    return {
        # On a GPU: products whose sums have one order, and memory without gaps between blocks of changing size.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        **({} if is_alone else _interfaces(settings.host, GLOO_INTERFACE)),
        **inherited(),
        # What a pool names is for traffic between machines.
        **(_interfaces(LOOPBACK, GLOO_INTERFACE, NCCL_INTERFACE) if is_alone else {}),
        name: value,
        "RUNNER_NODE_ID": settings.node_id,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _interfaces(host: str, *variables: str) -> dict[str, str]:
    """Return these variables with the interface that has this address, at which processes then listen for each other
    and at no other: gloo always, NCCL where a node has no others, because between machines it has networks of its own
    choice. Nothing where no interface has it."""
    address = socket.gethostbyname(host)
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return dict.fromkeys(variables, name)
    return {}


@dataclass
class Child:
    work_dir: Path
    node_id: str
    process: asyncio.subprocess.Process
    is_torchrun: bool
    """Whether each training process writes down how it ended, for torchrun does not report it."""
    steps_before: int = 0
    """Number of the job's steps before those that this child counts."""
    _read_bytes: int = field(default=0)

    @classmethod
    async def start(
        cls, settings: Settings, start: StartTraining, order: TrainingOrder, *, port: int | None = None
    ) -> "Child":
        """`port`: as of `argv_of`."""
        write_order(settings.work_dir, order)
        argv = argv_of(settings, start, port)
        if settings.child_argv is None:
            files = spawn.own_files([settings.work_dir], order.inputs, has_peers=True)
            argv = spawn.launched(argv, files=files)
        process = await spawn.start(argv, environment=environment_of(settings, start))
        is_torchrun = needs_torchrun(settings, start)
        return cls(settings.work_dir, settings.node_id, process, is_torchrun, start.steps_before)

    @property
    def has_ended(self) -> bool:
        return self.process.returncode is not None

    def new_reports(self) -> Iterator[Report]:
        """Yield the reports that were written since the last call. Raises ValueError for a line that is none."""
        try:
            with (self.work_dir / REPORTS).open("rb") as file:
                file.seek(self._read_bytes)
                reports, used = parse_reports(file.read())
        except FileNotFoundError:
            return
        self._read_bytes += used
        yield from (counted_after(report, self.steps_before) for report in reports)

    def ask_to_stop(self, reason: str) -> None:
        write_whole(self.work_dir / STOP, reason)

    async def end(self) -> int:
        """End all of the child's processes at once. Return its exit code."""
        await asyncio.to_thread(kill_marked, mark(self.node_id), timeout_seconds=KILL_SECONDS)
        return await self.process.wait()

    async def end_with_dump(self) -> int:
        """Send SIGABRT first, on which each process writes where it hangs, then end all. Return the exit code."""
        signal_marked(mark(self.node_id), signal.SIGABRT)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), DUMP_SECONDS)
        return await self.end()

    def rank_codes(self) -> tuple[int, ...]:
        """Return the exit codes of the training processes that have ended."""
        if not self.is_torchrun and self.process.returncode is not None:
            return (self.process.returncode,)
        files = sorted(self.work_dir.glob("exit-*"))
        return tuple(int(text) for file in files if (text := file.read_text().strip()))
