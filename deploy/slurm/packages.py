"""Slurm's programs, which are the distribution's packages."""

from deploy.packages import Packages

SLURM = Packages(
    "Slurm",
    names=("slurmctld", "slurmd", "slurm-client", "munge", "slurm-wlm-basic-plugins"),
    programs=("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun"),
    target="setup-slurm",
)
