"""One Slurm cluster as a backend of all pools that have their folder and their slurm.conf in common.

Beside the files of every backend (`folders.py`) the folder of an attempt has:

job          id of its job, once sbatch has given it
started      id of the job whose script ran first: no other one starts anything
again        the script ran once more: slurmctld had forgotten that it did, and its word on the end is no proof
asked        all runners are to end: the platform stops the attempt, or Slurm has given notice to the job
ended        how the job ended, kept for when slurmctld has forgotten it
job.out      what the job's script and srun printed
<index>/     host: its name, by the node; gone: nothing of the runner is left, its exit code is unknown
"""

import asyncio
import fcntl
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from services.provisioner.backends.folders import (
    AttemptFolders,
    is_stopped,
    make_node,
    nodes_of,
    read,
    withdraw,
)
from services.provisioner.backends.polling import poll
from services.provisioner.backends.protocol import AttemptSpec, AttemptStatus, BackendFailed, SpecConflict
from services.provisioner.backends.slurm.commands import Slurm
from services.provisioner.backends.slurm.jobs import Job, MachineState, folder_of
from services.provisioner.backends.slurm.script import batch_script, keeper_options, sbatch_arguments
from services.provisioner.backends.slurm.status import Cluster, end_of, is_quiet, may_live, status_of
from services.provisioner.node_keys import NodeKeys
from services.provisioner.settings import SlurmPool
from shared.clock import utc_now
from shared.files import create_whole, write_whole

POLL_SECONDS = 1.0
RESYNC_POLLS = 5
WAIT_POLL_SECONDS = 0.5
KILL_SECONDS = 10.0
CANCEL_SECONDS = 90.0
"""Longer than Slurm's KillWait, with time for an epilog."""
KEEPER = "services.provisioner.backends.slurm.keeper"


class SlurmBackend:
    def __init__(
        self,
        pools: Mapping[str, SlurmPool],
        *,
        env_file: Path,
        node_keys: NodeKeys,
        logs_retention: timedelta,
    ) -> None:
        self._pools = pools
        any_pool = next(iter(pools.values()))
        self._folder = any_pool.folder
        self._folders = AttemptFolders(self._folder, logs_retention=logs_retention)
        self._fenced_after = max(pool.fenced_after_seconds for pool in pools.values())
        self._env_file = env_file
        self._node_keys = node_keys
        self._slurm = Slurm(any_pool.conf)

    async def start(self, spec: AttemptSpec) -> None:
        root = await asyncio.to_thread(self._folders.claim, spec)
        async with _locked(root / "lock"):
            if (root / "job").exists() or (root / "started").exists():
                return
            jobs = await self._jobs(spec.name)
            job_id = jobs[0].id if jobs else await self._submit(spec, root)
            write_whole(root / "job", str(job_id))
        if is_stopped(root):
            await self._slurm.cancel(job_id)
            raise SpecConflict(f"{spec.name} was stopped while its job was submitted")

    async def inspect(self, name: str) -> AttemptStatus | None:
        root = self._folders.folder(name)
        if not root.is_dir():
            return None
        return _status(root, await self._cluster())

    async def list_owned(self) -> list[AttemptStatus]:
        """Also jobs whose folder is gone: nobody else would end them."""
        cluster = await self._cluster()
        attempts = [status for root in self._folders.attempts() if (status := _status(root, cluster))]
        known = {status.name for status in attempts}
        strays = {job.name for job in cluster.jobs if not job.is_over and job.name not in known}
        return attempts + [AttemptStatus(name, ()) for name in sorted(strays)]

    def watch(self) -> AsyncIterator[AttemptStatus]:
        return poll(self.list_owned, period_seconds=POLL_SECONDS, resync_polls=RESYNC_POLLS)

    async def machines(self, pool: str) -> frozenset[str]:
        of_partition = await self._slurm.machines(self._pools[pool].partition)
        return frozenset(name for name, machine in of_partition.items() if machine.state is MachineState.UP)

    async def notify(self, name: str, index: int, deadline: datetime) -> None:
        node = self._folders.folder(name) / str(index)
        if node.is_dir():
            write_whole(node / "notice", deadline.isoformat())
            await self._wake(name)

    async def end(self, name: str, index: int) -> None:
        """A node that does not answer ends its runner itself, when it sees that the grant is gone."""
        node = self._folders.folder(name) / str(index)
        withdraw(node)
        await self._wake(name)
        await self._until(lambda: is_quiet(node), name, KILL_SECONDS)

    async def stop(self, name: str, grace_seconds: float) -> None:
        root = await asyncio.to_thread(self._folders.stop, name)
        if root is None:
            return
        nodes = nodes_of(root)
        if grace_seconds > 0:
            (root / "asked").touch()
            await self._wake(name)
            await self._until(lambda: _are_quiet(nodes), name, grace_seconds)
        for node in nodes:
            withdraw(node)
        withdrawn = time.monotonic()
        if not await self._until(lambda: _are_quiet(nodes), name, 0.0):
            await self._wake(name)
            await self._until(lambda: _are_quiet(nodes), name, KILL_SECONDS)
        await self._cancel(name)
        await self._until_fenced(root, withdrawn + self._fenced_after)

    async def forget(self, name: str) -> None:
        await asyncio.to_thread(self._folders.forget, name)

    async def _submit(self, spec: AttemptSpec, root: Path) -> int:
        pool = self._pools.get(spec.pool)
        if pool is None:
            raise BackendFailed(
                f"{spec.name} is for pool {spec.pool}, expected one of {', '.join(self._pools)}"
            )
        for index in range(spec.nodes):
            make_node(root, index, self._node_keys.private(spec.name, index))
        if spec.excluded:
            machines = await self._slurm.machines()
            # sbatch refuses a job that excludes what Slurm does not know, such as a machine that was removed.
            spec = replace(spec, excluded=tuple(name for name in spec.excluded if name in machines))
        keeper = [sys.executable, "-m", KEEPER, keeper_options(root, pool, self._env_file)]
        script = batch_script(spec, root, keeper, pool.srun_flags)
        return await self._slurm.submit(sbatch_arguments(spec, pool, root), script)

    async def _jobs(self, name: str) -> list[Job]:
        return (await self._cluster(with_machines=False)).of(name)

    async def _cluster(self, *, with_machines: bool = True) -> Cluster:
        """Return our jobs, and the state of the cluster's machines, which notices and losses follow from."""
        jobs = [job for job in await self._slurm.jobs() if folder_of(job.comment) == str(self._folder)]
        busy = [job for job in jobs if with_machines and not job.is_pending]
        machines = await self._slurm.machines() if busy else {}
        names = {job.id: await self._slurm.names(job.machines) for job in busy if job.machines}
        return Cluster(tuple(jobs), machines, utc_now(), names)

    async def _wake(self, name: str) -> None:
        for job in await self._jobs(name):
            if not job.is_pending and not job.is_over:
                await self._slurm.wake(job.id)

    async def _cancel(self, name: str) -> None:
        """End all jobs of the name, also one that was submitted twice."""
        root, deadline = self._folders.folder(name), time.monotonic() + CANCEL_SECONDS
        cancelled: set[int] = set()
        while jobs := [job for job in await self._jobs(name) if not job.is_over]:
            for job in jobs:
                if job.is_pending and str(job.id) == read(root / "started"):
                    (root / "again").touch()  # it did run, so slurmctld has forgotten that
                if job.id not in cancelled:
                    await self._slurm.cancel(job.id)
                    cancelled.add(job.id)
            if time.monotonic() > deadline:
                states = ", ".join(f"{job.id} {'+'.join(sorted(job.states))}" for job in jobs)
                raise BackendFailed(f"{name}: after {CANCEL_SECONDS:g} s its jobs are not over: {states}")
            await asyncio.sleep(WAIT_POLL_SECONDS)

    async def _until(self, condition: Callable[[], bool], name: str, seconds: float) -> bool:
        """Wait until the condition is met, or the attempt's jobs are over. Return False after so many seconds."""
        deadline = time.monotonic() + seconds
        while not condition():
            if all(job.is_over or job.is_pending for job in await self._jobs(name)):
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(WAIT_POLL_SECONDS)
        return True

    async def _until_fenced(self, root: Path, deadline: float) -> None:
        """Wait for runners that nobody can reach: until then one that has lost its grant must have ended itself."""
        job = (await self._cluster(with_machines=False)).job_of(root)
        while may_live(root, job) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(WAIT_POLL_SECONDS)


def _status(root: Path, cluster: Cluster) -> AttemptStatus | None:
    """Return what is known of the attempt, and keep how its job ended: slurmctld forgets that after MinJobAge."""
    job = cluster.job_of(root)
    if job is not None and job.is_over and not (root / "ended").exists():
        create_whole(root / "ended", json.dumps(end_of(job, cluster)))
    return status_of(root, job, cluster) if root.is_dir() else None


def _are_quiet(nodes: list[Path]) -> bool:
    """Return whether nothing of a runner is left on any node that has begun."""
    return all(is_quiet(node) for node in nodes if read(node / "host"))


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold the lock file, waiting for whoever has it in this or another process."""
    with path.open("w") as file:
        await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX)
        yield
