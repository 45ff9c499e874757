"""The release before this one."""

import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PREVIOUS = "edaf1c6c95ebfa3b0f904711d2c2c05c69843318"
"""Commit of it. Moved with each release: users go from one release to the next."""


def unpack_previous(folder: Path, *paths: str) -> Path | None:
    """Return the folder with its files, or those below `paths`; None where this clone does not reach back to it."""
    command = ["git", "-C", str(REPOSITORY), "archive", PREVIOUS, *paths]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode != 0:
        return None
    folder.mkdir(exist_ok=True)
    subprocess.run(["tar", "--extract", f"--directory={folder}"], input=archive.stdout, check=True)
    return folder
