"""The collector's program, built by Go once per user from the modules that `go/` pins."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from deploy.local.binaries import go
from deploy.local.cache import cache_folder, cached
from deploy.local.errors import MissingPart

VERSION = "0.161.0"
MODULE = Path(__file__).with_name("go")
PROGRAM = "otelcol"
GO_AT_LEAST = (1, 25)
TAKES = "it takes a minute on two cores"


def program() -> Path:
    """Raises MissingPart where this user has not built it."""
    entry = cache_folder() / _name()
    if not _is_complete(entry):
        raise MissingPart(f"no collector {VERSION} in {entry}: run `make setup-collector`, {TAKES}")
    return entry / PROGRAM


def set_up() -> Path:
    """Return the program, built now where this user does not have it. Raises MissingPart."""
    cached(_name(), is_complete=_is_complete, make=_build, takes=TAKES)
    return program()


def _name() -> str:
    pins = b"".join((MODULE / name).read_bytes() for name in ("main.go", "go.sum"))
    return f"{PROGRAM}-{VERSION}-{hashlib.sha256(pins).hexdigest()[:12]}-{sys.platform}-{os.uname().machine}"


def _is_complete(folder: Path) -> bool:
    return os.access(folder / PROGRAM, os.X_OK)


def _build(folder: Path) -> None:
    command = ["nice", str(go(GO_AT_LEAST)), "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w"]
    settings = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": ""}
    done = subprocess.run(
        [*command, "-o", f"{folder}/", "."],
        cwd=MODULE,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise MissingPart(
            f"the collector {VERSION} did not build: check that the Go module proxy is reachable [{last}]"
        )
