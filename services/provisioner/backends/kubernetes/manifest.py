"""What is created for an attempt: its record, its nodes' keys, its Job, and its PodGroup where the cluster schedules
gangs.

Nothing but the keys is secret: pods read them, and the addresses and keys of all runners, by the names of Secrets.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from services.provisioner.backends.protocol import AttemptSpec
from services.provisioner.settings import KubernetesPool

INSTALLATION = "retune/installation"
ATTEMPT = "retune/attempt"
LEASE = "retune/lease"
"""Label of a pod that is the node of a lease: others may reach it."""
FORGOTTEN = "retune/forgotten"
"""Label of a record: day on which its attempt was forgotten."""
NOTICE = "retune/notice"
"""Annotation of a pod: when the platform ends it."""
UNRECORDED = "retune/unrecorded"
"""Finalizer: the pod stays until its end is in the record."""
INDEX = "batch.kubernetes.io/job-completion-index"
QUEUE = "kueue.x-k8s.io/queue-name"
CONTAINER = "runner"
WORK = "/retune/work"
KEY_FILE = "/retune/key"
READABLE = 0o444
"""In a pod, where the runner is the only user, whoever that is."""
TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
MIN_GRACE_SECONDS = 1
"""0 would remove the object at once, whatever runs there."""
FENCE_MARGIN_SECONDS = 15.0

Manifest = dict[str, Any]


def record(spec: AttemptSpec, pool: KubernetesPool) -> Manifest:
    """Return what is kept of an attempt: Jobs and pods come and go."""
    data = {"digest": spec.digest, "nodes": str(spec.nodes), "pool": spec.pool, "keyed": "true"}
    return {"metadata": _metadata(spec.name, pool.installation), "data": data}


def keys(spec: AttemptSpec, pool: KubernetesPool, private_keys: Sequence[str]) -> Manifest:
    """Return the Secret of the nodes' private keys, by index; each pod is given its own alone."""
    by_index = {str(index): key for index, key in enumerate(private_keys)}
    return {"metadata": _metadata(spec.name, pool.installation), "immutable": True, "stringData": by_index}


def mark(name: str, installation: str) -> Manifest:
    """Return the record of a name that nothing was created for, and nothing will be."""
    return {"metadata": _metadata(name, installation), "data": {"stopped": "true"}}


def pod_group(spec: AttemptSpec, pool: KubernetesPool) -> Manifest:
    return {
        "metadata": _metadata(spec.name, pool.installation),
        "spec": {"schedulingPolicy": {"gang": {"minCount": spec.nodes}}},
    }


def job(spec: AttemptSpec, pool: KubernetesPool, *, has_gangs: bool) -> Manifest:
    """Return the Job, which begins suspended. A pod that ends ends its index, whatever with, and no other one."""
    metadata = _metadata(spec.name, pool.installation)
    of_lease = {LEASE: "true"} if spec.lease_id else {}
    pod = {
        "metadata": {"labels": metadata["labels"] | of_lease, "finalizers": [UNRECORDED]},
        "spec": _pod(spec, pool, has_gangs=has_gangs),
    }
    if pool.queue:
        metadata["labels"] = metadata["labels"] | {QUEUE: pool.queue}
    return {
        "metadata": metadata,
        "spec": {
            "completionMode": "Indexed",
            "completions": spec.nodes,
            "parallelism": spec.nodes,
            "backoffLimitPerIndex": 0,
            "podReplacementPolicy": "Failed",
            "suspend": True,
            "template": pod,
        },
    }


def grace(seconds: float) -> int:
    """Return the seconds that a deletion gives a pod."""
    return max(MIN_GRACE_SECONDS, math.ceil(seconds))


def _metadata(name: str, installation: str) -> Manifest:
    return {"name": name, "labels": {INSTALLATION: installation, ATTEMPT: name}}


def _pod(spec: AttemptSpec, pool: KubernetesPool, *, has_gangs: bool) -> Manifest:
    lost_after = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": pool.lost_after_seconds}
    optional = {
        "priorityClassName": pool.priority_class,
        "imagePullSecrets": [{"name": pool.image_pull_secret}] if pool.image_pull_secret else None,
        "schedulingGroup": {"podGroupName": spec.name} if has_gangs else None,
        "nodeSelector": pool.node_selector or None,
        "affinity": _affinity(spec) or None,
    }
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace(spec.grace_seconds),
        "tolerations": [*pool.tolerations, *({"key": key, **lost_after} for key in TAINTS)],
        "containers": [_container(spec, pool)],
        "volumes": [
            {"name": "work", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": pool.shared_memory}},
            {"name": "keys", "secret": {"secretName": spec.name, "defaultMode": READABLE}},
        ],
    } | {name: value for name, value in optional.items() if value is not None}


def _container(spec: AttemptSpec, pool: KubernetesPool) -> Manifest:
    devices = {pool.accelerator_resource: spec.devices_per_node} if pool.accelerator_resource else {}
    return {
        "name": CONTAINER,
        "image": pool.image,
        "command": list(spec.argv),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "workingDir": WORK,
        "envFrom": [{"secretRef": {"name": pool.secret}}] if spec.variables is None else [],
        "env": _environment(spec, pool) + _given(spec, pool),
        "resources": {"requests": {**pool.requests, **devices}, "limits": {**pool.limits, **devices}},
        "volumeMounts": [
            {"name": "work", "mountPath": WORK},
            {"name": "memory", "mountPath": "/dev/shm"},  # noqa: S108 - of the container
            {"name": "keys", "mountPath": KEY_FILE, "subPathExpr": "$(RUNNER_NODE_INDEX)", "readOnly": True},
        ],
    }


def _environment(spec: AttemptSpec, pool: KubernetesPool) -> list[Manifest]:
    """Return the variables of all pods: Kubernetes fills in what differs."""
    fields = {"RUNNER_NODE_INDEX": f"metadata.labels['{INDEX}']", "RUNNER_HOST": "status.podIP"}
    values: Mapping[str, str] = {
        **dict(spec.env),
        **{name: value for name, value in spec.node_env(0).items() if name not in fields},
        "RUNNER_NODE_ID": f"{spec.name}-n$(RUNNER_NODE_INDEX)",
        "RUNNER_WORK_DIR": f"{WORK}/runner",
        "RUNNER_CACHE_DIR": f"{WORK}/cache",
        "RUNNER_NOTICE_FILE": f"{WORK}/notice",
        "RUNNER_NODE_KEY_FILE": KEY_FILE,
        "RUNNER_DEFAULT_GRACE": f"PT{grace(spec.grace_seconds)}S",
        "RUNNER_FENCE_AFTER": f"PT{pool.fenced_after_seconds - FENCE_MARGIN_SECONDS:g}S",
    }
    own = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    return own + [{"name": name, "value": value} for name, value in values.items()]


def _given(spec: AttemptSpec, pool: KubernetesPool) -> list[Manifest]:
    """Return the variables of the operator's secret where a pod does not get all."""
    return [
        {
            "name": name,
            "valueFrom": {"secretKeyRef": {"name": pool.secret, "key": name, "optional": True}},
        }
        for name in spec.variables or ()
    ]


def _affinity(spec: AttemptSpec) -> Manifest:
    """Keep the pods of an attempt on machines of their own, and away from those that are excluded."""
    affinity: Manifest = {}
    if spec.nodes > 1:
        own = {
            "labelSelector": {"matchLabels": {ATTEMPT: spec.name}},
            "topologyKey": "kubernetes.io/hostname",
        }
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [own]}
    if spec.excluded:
        fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in spec.excluded]
        required = {"nodeSelectorTerms": [{"matchFields": fields}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    return affinity


def seen(index: int, content: Mapping[str, Any]) -> tuple[str, str]:
    """Return the entry of a record for a node."""
    return f"node-{index}", json.dumps(content, sort_keys=True)
