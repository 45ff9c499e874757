"""One Postgres; runs as root too, by starting it as an unprivileged user."""

import os
import pwd
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from deploy.bootstrap import postgres as bootstrap
from deploy.bootstrap.site import POSTGRES_SUPER_USER
from deploy.local import files
from deploy.local.binaries import Binaries, postgres_version
from deploy.local.errors import MissingPart, StackError
from deploy.local.site import site
from deploy.local.state import LOOPBACK, State
from deploy.local.supervisor import Program
from shared.files import write_whole
from shared.tls import client_context

NAME = "postgres"
MAX_CONNECTIONS = 300
NOGROUP = 65534
CERTIFICATE = "server.pem"
HBA = "hba-tls.conf"
HBA_RULES = f"hostssl all all {LOOPBACK}/32 scram-sha-256\n"
UNSHARE = ("unshare", "--user", "--map-user=65534", "--map-group=65534", "--")


@dataclass(frozen=True)
class UnprivilegedUser:
    """How to start Postgres, which refuses to run as root."""

    prefix: tuple[str, ...] = ()
    user_id: int | None = None


def prepare(state: State, parts: Binaries) -> None:
    """Make the data folder if there is none."""
    data = state.root / NAME / "data"
    version = postgres_version(parts.postgres)
    if certificate := state.certificate(NAME):
        files.folder(data.parent)
        _write_tls(certificate, data.parent, unprivileged_user_for(parts.postgres))
    if (data / "PG_VERSION").exists():
        _require_version(data, version)
        return
    files.folder(data.parent)
    unprivileged = unprivileged_user_for(parts.postgres)
    draft = data.with_name("data.new")
    shutil.rmtree(draft, ignore_errors=True)
    _initdb(state, parts.postgres, draft, unprivileged)
    draft.rename(data)


def _write_tls(certificate: Path, folder: Path, unprivileged: UnprivilegedUser) -> None:
    """A copy of the certificate that is the server's own, as it must be, and the rule that lets nobody in without."""
    for name, content in ((CERTIFICATE, certificate.read_text()), (HBA, HBA_RULES)):
        write_whole(folder / name, content)
        if unprivileged.user_id is not None:
            os.chown(folder / name, unprivileged.user_id, NOGROUP)


def _require_version(data: Path, version: int) -> None:
    existing = int((data / "PG_VERSION").read_text())
    if existing != version:
        raise MissingPart(
            f"{data} was made by Postgres {existing}, but Postgres {version} was found: set RETUNE_POSTGRES_BIN "
            f"to the bin folder of a Postgres {existing}, or start again with another state folder"
        )


def unprivileged_user_for(folder: Path) -> UnprivilegedUser:
    """Nothing for a normal user; as root a user namespace, else the user `nobody`. Raises MissingPart."""
    if os.geteuid() != 0:
        return UnprivilegedUser()
    nobody = pwd.getpwnam("nobody").pw_uid
    for unprivileged in (UnprivilegedUser(prefix=UNSHARE), UnprivilegedUser(user_id=nobody)):
        if _run(unprivileged, [str(folder / "postgres"), "--version"]).returncode == 0:
            return unprivileged
    raise MissingPart(
        f"Postgres refuses to run as root, and neither unshare nor user nobody can start {folder}/postgres: "
        "start the stack as a normal user, or set RETUNE_POSTGRES_BIN to a folder that everyone may read"
    )


def _run(unprivileged: UnprivilegedUser, command: list[str]) -> subprocess.CompletedProcess[str]:
    changed = unprivileged.user_id is not None
    try:
        return subprocess.run(
            [*unprivileged.prefix, *command],
            capture_output=True,
            text=True,
            check=False,
            user=unprivileged.user_id,
            group=NOGROUP if changed else None,
            extra_groups=[] if changed else None,
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, returncode=126, stdout="", stderr=str(error))


def _initdb(state: State, folder: Path, data: Path, unprivileged: UnprivilegedUser) -> None:
    secret = data.with_name("superuser.password")
    write_whole(secret, site(state).postgres_password(POSTGRES_SUPER_USER))
    if unprivileged.user_id is not None:
        os.chown(data.parent, unprivileged.user_id, NOGROUP)
        os.chown(secret, unprivileged.user_id, NOGROUP)
    command = [str(folder / "initdb"), "-D", str(data), "-U", POSTGRES_SUPER_USER, f"--pwfile={secret}"]
    command += ["-A", "scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8", "--locale-provider=builtin"]
    command += ["--data-checksums"]
    done = _run(unprivileged, command)
    secret.unlink()
    if done.returncode != 0:
        raise StackError(f"initdb failed in {data}: {(done.stdout + done.stderr).strip()[-500:]}")


def program(state: State, parts: Binaries) -> Program:
    async def is_ready() -> bool:
        return await _answers(state)

    unprivileged = unprivileged_user_for(parts.postgres)
    settings = {
        "listen_addresses": LOOPBACK,
        "port": state.port(NAME),
        "unix_socket_directories": "",
        "max_connections": MAX_CONNECTIONS,
        **_tls(state),
    }
    command = [*unprivileged.prefix, str(parts.postgres / "postgres"), "-D", str(state.root / NAME / "data")]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    # SIGINT is the fast shutdown: it does not wait for clients to leave.
    return Program(NAME, tuple(command), is_ready, stop_signal=signal.SIGINT, user_id=unprivileged.user_id)


def _tls(state: State) -> dict[str, str]:
    if state.ca_file is None:
        return {}
    folder = state.root / NAME
    certificate = str(folder / CERTIFICATE)
    return {
        "ssl": "on",
        "ssl_cert_file": certificate,
        "ssl_key_file": certificate,
        "hba_file": str(folder / HBA),
    }


async def _answers(state: State) -> bool:
    try:
        dsn = site(state).postgres_dsn(POSTGRES_SUPER_USER, database=POSTGRES_SUPER_USER)
        connection = await asyncpg.connect(dsn, timeout=5, ssl=client_context(state.ca_file))
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
    await connection.close()
    return True


async def set_up(state: State, _: tuple[str, ...]) -> None:
    await bootstrap.set_up(site(state))
