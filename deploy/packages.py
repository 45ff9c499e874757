"""Programs of the distribution's packages: those of the machine, or installed where that can be done."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.local.errors import MissingPart

DAEMONS = "/usr/sbin:/sbin"
"""Where daemons are, which only root's PATH has."""
INSTALL_SECONDS = 300


@dataclass(frozen=True)
class Packages:
    title: str
    names: tuple[str, ...]
    """Of Debian and Ubuntu."""
    programs: tuple[str, ...]
    target: str
    """Of make, which installs them."""

    def paths(self) -> Mapping[str, Path]:
        """Return the programs by name. Raises MissingPart."""
        paths = {name: shutil.which(name) or shutil.which(name, path=DAEMONS) for name in self.programs}
        if missing := [name for name, path in paths.items() if path is None]:
            raise MissingPart(
                f"no {self.title} ({', '.join(missing)} missing): run `make {self.target}` as root on Debian or"
                f" Ubuntu, or install the packages {' '.join(self.names)}"
            )
        return {name: Path(path) for name, path in paths.items() if path is not None}

    def set_up(self) -> Mapping[str, Path]:
        """Return the programs, installed now where root and apt can do that. Raises MissingPart."""
        try:
            return self.paths()
        except MissingPart:
            if os.geteuid() != 0 or shutil.which("apt-get") is None:
                raise
        self._apt_get("update")
        self._apt_get("install", "--yes", "--no-install-recommends", *self.names)
        return self.paths()

    def _apt_get(self, *arguments: str) -> None:
        command = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet", "--quiet", *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise MissingPart(f"`{' '.join(command)}` took longer than {INSTALL_SECONDS} s") from error
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise MissingPart(f"{self.title} was not installed: `{' '.join(command)}` failed [{last}]")
