"""Kubernetes' control plane and kubectl, built by Go once per user from the modules that `go/` pins."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from deploy.local.binaries import go
from deploy.local.cache import cache_folder, cached
from deploy.local.errors import MissingPart

VERSION = "1.36.3"
MODULE = Path(__file__).with_name("go")
PACKAGES: Mapping[str, str] = {
    "etcd": "./etcd",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
GO_AT_LEAST = (1, 26)
PARALLEL = 2
"""Packages that are compiled at a time: each takes up to 1 GB."""
PROGRESS_PACKAGES = 100
TAKES = "it takes 10 minutes and more on two cores, and leaves 3.3 GB in Go's own cache"


def programs() -> Mapping[str, Path]:
    """Return the programs by name. Raises MissingPart where this user has not built them."""
    entry = cache_folder() / _name()
    if not _is_complete(entry):
        raise MissingPart(f"no Kubernetes {VERSION} in {entry}: run `make setup-kubernetes`, {TAKES}")
    return {name: entry / name for name in PACKAGES}


def set_up() -> Mapping[str, Path]:
    """Return the programs, built now where this user does not have them. Raises MissingPart."""
    cached(_name(), is_complete=_is_complete, make=_build, takes=TAKES)
    return programs()


def _name() -> str:
    return f"kubernetes-{VERSION}-{sys.platform}-{os.uname().machine}"


def _is_complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in PACKAGES)


def _build(folder: Path) -> None:
    command = ["nice", str(go(GO_AT_LEAST)), "build", "-v", f"-p={PARALLEL}", "-trimpath", "-buildvcs=false"]
    version = f"-X k8s.io/component-base/version.gitVersion=v{VERSION}"
    command += ["-ldflags", f"-s -w {version}", "-o", f"{folder}/", *PACKAGES.values()]
    settings = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": ""}
    with subprocess.Popen(
        command, cwd=MODULE, env=os.environ | settings, stderr=subprocess.PIPE, text=True
    ) as build:
        last = _followed(build)
    if build.returncode != 0:
        raise MissingPart(
            f"Kubernetes {VERSION} did not build: check that the Go module proxy is reachable [{last}]"
        )


def _followed(build: "subprocess.Popen[str]") -> str:
    """Print how far the build is; return its last line."""
    line = "no output"
    assert build.stderr is not None, "the build was started with a pipe"
    for number, each in enumerate(build.stderr, start=1):
        line = each.strip()
        if number % PROGRESS_PACKAGES == 0:
            print(f"  {number} packages are downloaded or compiled, the last is {line}", flush=True)
    return line
