"""The backend of Kubernetes: an attempt is an Indexed Job, and its nodes are the job's pods."""

from collections.abc import Mapping
from datetime import timedelta

from services.provisioner.backends.kubernetes.backend import KubernetesBackend
from services.provisioner.backends.protocol import Backend
from services.provisioner.node_keys import NodeKeys
from services.provisioner.settings import KubernetesPool


def kubernetes_backends(
    pools: Mapping[str, KubernetesPool], *, node_keys: NodeKeys, logs_retention: timedelta
) -> Mapping[str, Backend]:
    """Return the backend of each pool: one for all pools of the same installation in the same namespace."""
    places = {pool.place for pool in pools.values()}
    backends = {
        place: KubernetesBackend(
            {name: pool for name, pool in pools.items() if pool.place == place},
            node_keys=node_keys,
            logs_retention=logs_retention,
        )
        for place in places
    }
    return {name: backends[pool.place] for name, pool in pools.items()}
