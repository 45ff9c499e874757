"""What others do to a Kubernetes of this machine: its administrator, its queue, somebody with a higher priority."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from deploy.kubernetes.cluster import GANG_API, NAMESPACE, KubernetesCluster
from services.provisioner.backends.kubernetes.manifest import ATTEMPT

SECRET = "runner"
PLACE = f"/api/v1/namespaces/{NAMESPACE}"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
GROUPS = f"/apis/{GANG_API}/namespaces/{NAMESPACE}/podgroups"
URGENT = "urgent"


def pods_of(kubernetes: KubernetesCluster, name: str) -> list[Mapping[str, Any]]:
    return kubernetes.request("GET", f"{PLACE}/pods?labelSelector={ATTEMPT}%3D{name}")["items"]


def jobs_of(kubernetes: KubernetesCluster, name: str) -> list[Mapping[str, Any]]:
    return kubernetes.request("GET", f"{JOBS}?labelSelector={ATTEMPT}%3D{name}")["items"]


def status_of_job(kubernetes: KubernetesCluster, name: str) -> Mapping[str, Any]:
    return kubernetes.request("GET", f"{JOBS}/{name}")["status"]


def groups_of(kubernetes: KubernetesCluster, name: str) -> list[Mapping[str, Any]]:
    return kubernetes.request("GET", f"{GROUPS}?labelSelector={ATTEMPT}%3D{name}")["items"]


def secrets_of(kubernetes: KubernetesCluster, name: str) -> list[Mapping[str, Any]]:
    return kubernetes.request("GET", f"{PLACE}/secrets?labelSelector={ATTEMPT}%3D{name}")["items"]


def pod_of(kubernetes: KubernetesCluster, name: str, index: int) -> str:
    pods: list[str] = [pod["metadata"]["name"] for pod in pods_of(kubernetes, name)]
    of_node = [pod for pod in pods if pod.startswith(f"{name}-{index}-")]
    assert of_node, f"node {index} of {name} has no pod; pods are {pods}"
    return of_node[0]


def put_secret(
    kubernetes: KubernetesCluster, name: str, values: Mapping[str, str], *, namespace: str = NAMESPACE
) -> None:
    body = {"metadata": {"name": name}, "stringData": dict(values)}
    kubernetes.request("POST", f"/api/v1/namespaces/{namespace}/secrets", body)


def evict(kubernetes: KubernetesCluster, pod: str) -> None:
    """As `kubectl drain` does."""
    kubernetes.request("POST", f"{PLACE}/pods/{pod}/eviction", {"metadata": {"name": pod}})


def remove_by_force(kubernetes: KubernetesCluster, name: str) -> None:
    """Remove the attempt's Job and pods as if they had never been."""
    for job in jobs_of(kubernetes, name):
        kubernetes.request("DELETE", f"{JOBS}/{job['metadata']['name']}", {"propagationPolicy": "Orphan"})
    for pod in pods_of(kubernetes, name):
        path = f"{PLACE}/pods/{pod['metadata']['name']}"
        kubernetes.request("PATCH", path, {"metadata": {"finalizers": None}}, of="merge")
        kubernetes.request("DELETE", path, {"gracePeriodSeconds": 0})


@contextmanager
def cordoned(kubernetes: KubernetesCluster, *nodes: str) -> Iterator[None]:
    """Nothing new starts on these nodes."""
    for node in nodes:
        _update(kubernetes, node, {"unschedulable": True})
    try:
        yield
    finally:
        for node in nodes:
            _update(kubernetes, node, {"unschedulable": None})


@contextmanager
def tainted(kubernetes: KubernetesCluster, node: str) -> Iterator[None]:
    """The node is emptied, as a cloud's handler of reclaimed machines does."""
    _update(kubernetes, node, {"taints": [{"key": "cloud/reclaimed", "effect": "NoExecute"}]})
    try:
        yield
    finally:
        _update(kubernetes, node, {"taints": None})


@contextmanager
def blocked(kubernetes: KubernetesCluster, *, nodes: int) -> Iterator[None]:
    """Somebody's more urgent pods take so many whole nodes."""
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    kubernetes.request("POST", classes, {"metadata": {"name": URGENT}, "value": 1000})
    container = {
        "name": "urgent",
        "image": "urgent",
        "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": "8"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "priorityClassName": URGENT,
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    names = [f"urgent-{number}" for number in range(nodes)]
    for name in names:
        kubernetes.request("POST", f"{PLACE}/pods", {"metadata": {"name": name}, "spec": spec})
    try:
        yield
    finally:
        for name in names:
            kubernetes.request("DELETE", f"{PLACE}/pods/{name}", {})
        kubernetes.request("DELETE", f"{classes}/{URGENT}", {})


def suspend(kubernetes: KubernetesCluster, name: str, *, is_suspended: bool) -> None:
    """As Kueue admits a job, and takes its machines back."""
    kubernetes.request("PATCH", f"{JOBS}/{name}", {"spec": {"suspend": is_suspended}}, of="merge")


def _update(kubernetes: KubernetesCluster, node: str, spec: Mapping[str, Any]) -> None:
    kubernetes.request("PATCH", f"/api/v1/nodes/{node}", {"spec": spec}, of="merge")
