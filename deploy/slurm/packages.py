"""Slurm's programs: found on the machine, or installed as the distribution's packages where that can be done."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from deploy.local.errors import MissingPart

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "slurm-wlm-basic-plugins")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
DAEMONS = "/usr/sbin:/sbin"
"""Where daemons are, which only root's PATH has."""
INSTALL_SECONDS = 300


def programs() -> Mapping[str, Path]:
    """Return Slurm's programs by name. Raises MissingPart."""
    paths = {name: shutil.which(name) or shutil.which(name, path=DAEMONS) for name in PROGRAMS}
    if missing := [name for name, path in paths.items() if path is None]:
        raise MissingPart(
            f"no Slurm ({', '.join(missing)} missing): run `make setup-slurm` as root on Debian or Ubuntu, or install"
            f" the packages {' '.join(PACKAGES)}"
        )
    return {name: Path(path) for name, path in paths.items() if path is not None}


def set_up() -> Mapping[str, Path]:
    """Return Slurm's programs, installed now where root and apt can do that. Raises MissingPart."""
    try:
        return programs()
    except MissingPart:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise
    _apt_get("update")
    _apt_get("install", "--yes", "--no-install-recommends", *PACKAGES)
    return programs()


def _apt_get(*arguments: str) -> None:
    command = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet", "--quiet", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise MissingPart(f"`{' '.join(command)}` took longer than {INSTALL_SECONDS} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise MissingPart(f"Slurm was not installed: `{' '.join(command)}` failed [{last}]")
