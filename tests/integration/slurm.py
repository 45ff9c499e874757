"""Questions to a Slurm of this machine, and somebody else's jobs on it."""

from collections.abc import Iterator
from contextlib import contextmanager

from deploy.slurm.cluster import SlurmCluster


@contextmanager
def blocked(slurm: SlurmCluster, *, nodes: int, partition: str = "spot") -> Iterator[None]:
    """Somebody else's job holds so many nodes, or takes them."""
    job = ("--parsable", f"--partition={partition}", f"--nodes={nodes}", "--exclusive", "--output=/dev/null")
    number = slurm.run("sbatch", *job, "--wrap=sleep 600").strip()
    try:
        yield
    finally:
        slurm.run("scancel", "--signal=KILL", "--full", number)
        slurm.run("scancel", number)


def running_jobs(slurm: SlurmCluster, name: str) -> list[str]:
    return slurm.run("squeue", "--noheader", f"--name={name}", "--format=%i").split()


def idle(slurm: SlurmCluster) -> set[str]:
    """Names of the machines that nothing runs on, not even the end of a job."""
    command = ("--noheader", "--Node", "--partition=spot", "--states=idle", "--responding", "--format=%N")
    return set(slurm.run("sinfo", *command).split())
