"""One S3 server: versitygw over a folder."""

import os
from pathlib import Path

from deploy.bootstrap import s3 as bootstrap
from deploy.bootstrap.site import S3_ROOT
from deploy.local import files
from deploy.local.binaries import Binaries
from deploy.local.network import answers_ok
from deploy.local.site import site
from deploy.local.state import LOOPBACK, State
from deploy.local.supervisor import Program

NAME = "s3"


def prepare(state: State, _: Binaries) -> None:
    folder = files.folder(state.root / NAME)
    files.folder(folder / "iam")
    files.folder(folder / "data")
    if not _keeps_attributes(folder):
        files.folder(folder / "sidecar")


def _keeps_attributes(folder: Path) -> bool:
    """The server keeps metadata in extended attributes, or beside the objects where the disk has none."""
    try:
        os.setxattr(folder, "user.retune", b"1")
    except OSError:
        return False
    return True


def program(state: State, parts: Binaries) -> Program:
    async def is_ready() -> bool:
        return await answers_ok(state.port(NAME), "/health", ca_file=state.ca_file)

    folder = state.root / NAME
    sidecar = ("--sidecar", str(folder / "sidecar")) if (folder / "sidecar").exists() else ()
    command = (
        str(parts.versitygw),
        "--quiet",
        "--port",
        f"{LOOPBACK}:{state.port(NAME)}",
        "--health",
        "/health",
        *_tls(state),
    )
    store = ("posix", "--dir-perms", "0700", "--file-perms", "0600", *sidecar, str(folder / "data"))
    root = site(state).s3_credentials(S3_ROOT)
    return Program(
        NAME,
        (*command, "--iam-dir", str(folder / "iam"), *store),
        is_ready,
        env={"ROOT_ACCESS_KEY": root.access_key, "ROOT_SECRET_KEY": root.secret_key},
    )


def _tls(state: State) -> tuple[str, ...]:
    certificate = state.certificate(NAME)
    if certificate is None:
        return ()
    return ("--cert", str(certificate), "--key", str(certificate))


async def set_up(state: State, _: tuple[str, ...]) -> None:
    await bootstrap.set_up(site(state))
