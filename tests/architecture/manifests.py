"""The manifests of deploy/kubernetes, parsed file by file; no kustomize takes part."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.architecture.source import ROOT

KUBERNETES = ROOT / "deploy/kubernetes"
BASE = KUBERNETES / "base"
COMPONENTS = KUBERNETES / "components"
POOLS = KUBERNETES / "pools"
EXAMPLE = KUBERNETES / "overlays/example"
PASSWORDS = "passwords"
FILLED_IN = {"metadata.labels['apps.kubernetes.io/pod-index']": "0", "status.podIP": "10.0.0.1"}
"""What Kubernetes puts in the place of a field."""

Manifest = dict[str, Any]


@cache
def documents(path: Path) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def kustomization(folder: Path) -> Manifest:
    [content] = documents(folder / "kustomization.yaml")
    return content


def resources(folder: Path) -> list[Manifest]:
    """What the kustomization of a folder lists, without its components."""
    files = kustomization(folder).get("resources", ())
    return [document for file in files if file.endswith(".yaml") for document in documents(folder / file)]


def of_kind(kind: str, folder: Path = BASE) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in resources(folder) if each["kind"] == kind}


def nodes_ports() -> dict[str, int]:
    """Ports of the listeners for nodes, by service."""
    environments = {service_of(each): own_environment(each) for each in of_kind("StatefulSet").values()}
    return {
        name: int(variables[setting])
        for name, variables in environments.items()
        if (setting := f"{name.upper()}_NODES_PORT") in variables
    }


def workloads() -> dict[str, Manifest]:
    """What has pods, by its name: services, the two jobs, the S3 server."""
    return {
        **of_kind("StatefulSet"),
        **of_kind("Job"),
        **of_kind("StatefulSet", COMPONENTS / "versitygw"),
    }


def service_of(manifest: Manifest) -> str:
    """The service of the tree: names of objects have hyphens."""
    return str(manifest["metadata"]["labels"]["retune/service"])


def pod(workload: Manifest) -> Manifest:
    spec: Manifest = workload["spec"]["template"]["spec"]
    return spec


def container(workload: Manifest) -> Manifest:
    [only] = pod(workload)["containers"]
    return dict(only)


def environment(workload: Manifest) -> dict[str, str]:
    """The container's variables as Kubernetes fills them in, each password replaced by its variable's name."""
    variables = dict(of_kind("ConfigMap")["platform"]["data"])
    for entry in container(workload).get("env", ()):
        variables[entry["name"]] = _expanded(_value(entry), variables)
    return variables


def own_environment(workload: Manifest) -> dict[str, str]:
    """Without what the ConfigMap brings, and what other values are made of."""
    apart = {*of_kind("ConfigMap")["platform"]["data"], "POSTGRES_PASSWORD"}
    return {name: value for name, value in environment(workload).items() if name not in apart}


def secret_keys(workload: Manifest) -> set[str]:
    """Keys of the secret `passwords` without which the container does not start."""
    references = [
        entry["valueFrom"]["secretKeyRef"]
        for entry in container(workload).get("env", ())
        if "secretKeyRef" in entry.get("valueFrom", {})
    ]
    assert {reference["name"] for reference in references} <= {PASSWORDS}
    return {reference["key"] for reference in references if not reference.get("optional")}


def _value(entry: Manifest) -> str:
    if "value" in entry:
        return str(entry["value"])
    source = entry["valueFrom"]
    return (
        FILLED_IN[source["fieldRef"]["fieldPath"]] if "fieldRef" in source else source["secretKeyRef"]["key"]
    )


def _expanded(value: str, variables: dict[str, str]) -> str:
    """Kubernetes leaves a name that it does not know as it is."""
    return re.sub(r"\$\((\w+)\)", lambda match: variables.get(match[1], match[0]), value)
