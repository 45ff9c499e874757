"""Slurm's commands, each with a time limit and an error that names it."""

import asyncio
import signal
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from services.provisioner.backends.protocol import BackendFailed, NoCapacity
from services.provisioner.backends.slurm.jobs import FULL, Job, Machine, parse_jobs, parse_machines
from shared.processes.environment import inherited

COMMAND_SECONDS = 30.0
MAX_NAMES = 10_000
LOOK = int(signal.SIGURG)


class Slurm:
    """One cluster. `conf`: its slurm.conf; None: where Slurm's commands look for it."""

    def __init__(self, conf: Path | None = None) -> None:
        # sbatch gives a job all that it sees, and slurmctld keeps it: so it sees no secret of ours.
        self._environment = inherited("SLURM_CONF") | ({"SLURM_CONF": str(conf)} if conf else {})
        self._names: dict[str, tuple[str, ...]] = {}

    async def submit(self, arguments: list[str], script: str) -> int:
        """Return the job's id. Raises NoCapacity where Slurm has no room for it, not even in its queue."""
        try:
            printed = await self._run("sbatch", *arguments, given=script)
        except BackendFailed as failure:
            if any(words in str(failure) for words in FULL):
                raise NoCapacity(str(failure)) from failure
            raise
        return int(printed.strip().partition(";")[0])

    async def jobs(self) -> list[Job]:
        """Return our user's jobs, those too that ended within MinJobAge."""
        printed = await self._run("squeue", "--json", "--me", "--states=all")
        try:
            return parse_jobs(printed)
        except (ValueError, KeyError, TypeError) as error:
            message = (
                f"squeue --json printed {printed[:200]!r}, expected jobs: {type(error).__name__}: {error}"
            )
            raise BackendFailed(message) from error

    async def machines(self, partition: str | None = None) -> dict[str, Machine]:
        """Return the machines of the partition; None: of all."""
        chosen = [f"--partition={partition}"] if partition else []
        return parse_machines(await self._run("sinfo", "--noheader", "--Node", "--format=%N|%T|%o", *chosen))

    async def names(self, machines: str) -> tuple[str, ...]:
        """Return the names of what Slurm writes as `n[1-2]`, in the order in which srun numbers its tasks."""
        if machines not in self._names:
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            self._names[machines] = tuple(
                (await self._run("scontrol", "show", "hostnames", machines)).split()
            )
        return self._names[machines]

    async def wake(self, job_id: int) -> None:
        """Wake the runners' keepers on all nodes; nothing where they are gone.

        A signal of scancel goes to all processes of a step, and SIGTERM makes its srun end it: this one nobody heeds.
        """
        await self._run("scancel", "--quiet", f"--signal={LOOK}", str(job_id))

    async def cancel(self, job_id: int) -> None:
        await self._run("scancel", "--quiet", str(job_id))

    async def _run(self, *command: str, given: str = "") -> str:
        line = " ".join((*command[:1], *(word for word in command[1:] if not word.startswith("--comment"))))
        try:
            process = await asyncio.create_subprocess_exec(
                *command, env=self._environment, stdin=PIPE if given else DEVNULL, stdout=PIPE, stderr=PIPE
            )
        except OSError as error:
            raise BackendFailed(f"`{line}` could not be run: {error}") from error
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                printed, errors = await process.communicate(given.encode() if given else None)
        except TimeoutError as error:
            raise BackendFailed(f"`{line}` did not end in {COMMAND_SECONDS:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            message = errors.decode(errors="replace").strip()
            raise BackendFailed(f"`{line}` ended with {process.returncode}: {message}")
        return printed.decode()
