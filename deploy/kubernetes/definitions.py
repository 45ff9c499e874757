"""Definitions of other projects' resources (CRDs), so that an API server here checks the manifests that have them.

Those of CloudNativePG, KEDA and Prometheus's operator are files of their Go modules. Strimzi publishes classes in
Maven, from which its own generator writes them.
"""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from deploy.local.binaries import java
from deploy.local.cache import cache_folder, cached
from deploy.local.errors import MissingPart
from deploy.local.jars import fetch, locked_jars

HERE = Path(__file__).parent
LOCK = HERE / "strimzi.lock"
POM = HERE / "strimzi.xml"
MODULES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "github.com/cloudnative-pg/cloudnative-pg@v1.30.0": (
        "h1:fnhVq44xXx97MNiuvJsPrX1vSjYbgdyBK5MSGfdHdp0=",
        ("config/crd/bases/postgresql.cnpg.io_clusters.yaml",),
    ),
    "github.com/kedacore/keda/v2@v2.21.0": (
        "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
        ("config/crd/bases/keda.sh_scaledobjects.yaml",),
    ),
    "github.com/prometheus-operator/prometheus-operator@v0.92.0": (
        "h1:tAbsod3+9sQsxDeAvLP27dAe9terToht5M+YdDwLGP0=",
        ("example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",),
    ),
}
"""By module: the checksum of its files as in go.sum, and those that are definitions."""
CLASSES = {
    "io.strimzi.api.kafka.model.kafka.Kafka": "kafka.strimzi.io_kafkas.yaml",
    "io.strimzi.api.kafka.model.nodepool.KafkaNodePool": "kafka.strimzi.io_kafkanodepools.yaml",
}
GENERATOR = "io.strimzi.crdgenerator.CrdGenerator"
FILES = frozenset([*CLASSES.values(), *(Path(path).name for _, paths in MODULES.values() for path in paths)])


def definitions() -> list[Path]:
    """Return the files, a definition in each. Raises MissingPart where this user has not fetched them."""
    entry = cache_folder() / _name()
    if not _is_complete(entry):
        raise MissingPart(f"no definitions of resources in {entry}: run `make setup-kubernetes`")
    return sorted(entry / name for name in FILES)


def set_up(go: Path) -> list[Path]:
    """Return the files, fetched now where this user does not have them. Raises MissingPart."""
    cached(_name(), is_complete=_is_complete, make=lambda folder: _fetch(folder, go))
    return definitions()


def _name() -> str:
    pins = json.dumps([*MODULES, LOCK.read_text(), sorted(FILES)])
    return f"kubernetes-definitions-{hashlib.sha256(pins.encode()).hexdigest()[:12]}"


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in FILES)


def _fetch(folder: Path, go: Path) -> None:
    for module, (checksum, paths) in MODULES.items():
        root = _module(go, module, checksum, folder)
        for path in paths:
            shutil.copy(root / path, folder)
    _generate(folder)


def _module(go: Path, module: str, checksum: str, folder: Path) -> Path:
    """Return the folder in which Go has the module's files."""
    command = [str(go), "mod", "download", "-json", module]
    environment = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout or "{}")
    if answer.get("Sum") != checksum:
        what = answer.get("Error") or answer.get("Sum") or done.stderr.strip()[-200:]
        raise MissingPart(f"Go module {module}: expected the checksum {checksum} [{what}]")
    return Path(answer["Dir"])


def _generate(folder: Path) -> None:
    jars = locked_jars(LOCK.read_text())
    library = folder / "jars"
    library.mkdir()
    fetch(library, jars, POM)
    path = os.pathsep.join(str(library / jar.file) for jar in jars)
    outputs = [f"{name}={folder / file}" for name, file in CLASSES.items()]
    command = [str(java()), "-cp", path, GENERATOR, "--yaml", "--target-kube", "1.25+", *outputs]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MissingPart(
            f"Strimzi's definitions were not written: its generator needs Java 21 [{done.stderr.strip()[-200:]}]"
        )
    shutil.rmtree(library)
