"""kubectl of the release that the control plane is of, and the platform's manifests as it renders and applies them."""

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from deploy.kubernetes.cluster import KubernetesCluster
from deploy.kubernetes.passwords import NAMESPACE
from deploy.kubernetes.programs import programs
from tests.architecture.manifests import BASE

STRICTLY = ("apply", "--server-side", "--force-conflicts", "--validate=strict", "--filename=-")
Manifest = dict[str, Any]


class Refused(Exception):
    """kubectl ended with an error, which is in the text."""


class Kubectl:
    def __init__(self, cluster: KubernetesCluster) -> None:
        self._program = programs()["kubectl"]
        self._kubeconfig = cluster.admin

    def __call__(self, *arguments: str, text: str = "") -> str:
        """Return what it prints. Raises Refused."""
        command = [str(self._program), f"--kubeconfig={self._kubeconfig}", *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refused(done.stderr.strip())
        return done.stdout

    def apply(self, manifests: Iterable[Manifest], *options: str) -> list[str]:
        """Apply them as they are, each field known to the server. Return their names as kubectl prints them."""
        answer = self(*STRICTLY, *options, "--output=name", text=yaml.safe_dump_all(manifests))
        return answer.split()

    def rendered(self, folder: Path) -> list[Manifest]:
        return list(yaml.safe_load_all(self("kustomize", str(folder))))

    def items(self, kind: str, namespace: str = NAMESPACE) -> list[Manifest]:
        """The objects of a kind in the namespace of the services, or another one."""
        answer = json.loads(self("get", kind, f"--namespace={namespace}", "--output=json"))
        return list(answer["items"])


def write_overlay(folder: Path, **content: Any) -> Path:
    """Write a kustomization over the base; kustomize takes relative paths alone."""
    base = os.path.relpath(BASE, folder.resolve())
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": [base]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({**head, **content}))
    return folder
