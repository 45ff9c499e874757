"""Which machines of a cluster take pods of a pool. Pure."""

from collections.abc import Mapping
from typing import Any

from services.provisioner.settings import KubernetesPool

Toleration = Mapping[str, str | int]


def takes_pods(node: Mapping[str, Any], pool: KubernetesPool) -> bool:
    """Return whether a Node takes pods of the pool, now or once there is room. Its labels are not looked at: the
    server chooses by them."""
    spec, status = node["spec"], node["status"]
    is_ready = any(
        each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ()
    )
    return (
        is_ready
        and not spec.get("unschedulable")
        and all(_is_tolerated(taint, pool.tolerations) for taint in spec.get("taints") or ())
        and (
            pool.accelerator_resource is None
            or status.get("allocatable", {}).get(pool.accelerator_resource, "0") != "0"
        )
    )


def _is_tolerated(taint: Mapping[str, str], tolerations: tuple[Toleration, ...]) -> bool:
    """As https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration has it; what is only better
    avoided (PreferNoSchedule) takes pods."""
    return taint["effect"] == "PreferNoSchedule" or any(_tolerates(each, taint) for each in tolerations)


def _tolerates(toleration: Toleration, taint: Mapping[str, str]) -> bool:
    operator, key = toleration.get("operator", "Equal"), toleration.get("key", "")
    is_of_effect = toleration.get("effect", "") in {"", taint["effect"]}
    if operator == "Exists":
        return is_of_effect and key in {"", taint["key"]}
    is_equal = operator == "Equal" and toleration.get("value", "") == taint.get("value", "")
    return is_of_effect and is_equal and key == taint["key"]
