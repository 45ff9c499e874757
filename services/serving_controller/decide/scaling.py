"""How many replicas a replica set has: one more while requests wait, one fewer once the others could answer all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from services.serving_controller.decide.pools import Policy
from services.serving_controller.model import Phase, Replica, Requests

FULL_AT = 0.5
"""Part of its requests at once that a replica shall have where another one leaves: they come unevenly."""


@dataclass(frozen=True)
class Scale:
    num_replicas: int
    waiting_since: datetime | None = None
    """When requests began to wait; None while none does."""
    spare_since: datetime | None = None
    """When one replica fewer began to be enough; None while it is not."""


def first_scale(replicas: Sequence[Replica], policy: Policy) -> Scale:
    """Return as many as there are: who leads from now on did not see the requests before."""
    existing = sum(replica.phase in (Phase.STARTING, Phase.READY) for replica in replicas)
    return Scale(max(policy.replicas_per_pool, min(existing, policy.max_replicas_per_pool)))


def next_scale(
    scale: Scale,
    replicas: Sequence[Replica],
    requests: Mapping[str, Requests],
    *,
    now: datetime,
    policy: Policy,
) -> Scale:
    """`requests`: by id of each replica that is ready.

    None is added while another one starts, and nothing is judged by what is not known.
    """
    number, limit = scale.num_replicas, policy.max_replicas_per_pool
    ready = {replica.replica_id for replica in replicas if replica.phase is Phase.READY}
    if not ready or requests.keys() != ready:
        return Scale(number)
    is_waited = len(ready) == len(replicas) == number and any(each.waiting for each in requests.values())
    total = sum(each.total for each in requests.values())
    is_enough = total <= (number - 1) * policy.requests_per_replica * FULL_AT
    waiting_since = (scale.waiting_since or now) if is_waited else None
    spare_since = (scale.spare_since or now) if is_enough else None
    if waiting_since and number < limit and now - waiting_since >= policy.scale_up_after:
        return Scale(number + 1)
    if spare_since and number > policy.replicas_per_pool and now - spare_since >= policy.scale_down_after:
        return Scale(number - 1)
    return Scale(number, waiting_since, spare_since)
