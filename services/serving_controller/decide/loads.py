"""Loads that failed on one replica: when they are tried again, and when that replica or the version is given up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from services.serving_controller.decide.pools import Action, End, Load, Policy, end
from services.serving_controller.model import Failure, Phase, Replica


@dataclass(frozen=True)
class Refusal:
    """Failed loads of one adapter by one start of one replica."""

    tries: int
    again_at: datetime


Refusals = Mapping[tuple[str, str], Refusal]
"""Refusals by incarnation and served name."""


def is_due(action: Action, seen: Mapping[str, Replica], refusals: Refusals, *, now: datetime) -> bool:
    if not isinstance(action, Load):
        return True
    refusal = refusals.get(_key(seen[action.replica_id], action.servable.served_name))
    return refusal is None or refusal.again_at <= now


def after(
    refusals: Refusals, replica: Replica, failures: Mapping[str, Failure], *, now: datetime, policy: Policy
) -> tuple[Refusals, dict[str, Failure]]:
    """Return the refusals with this step's failures counted; the failures are final where they were the last try."""
    counted, judged = dict(refusals), dict[str, Failure]()
    for name, failure in failures.items():
        tries = counted[_key(replica, name)].tries + 1 if _key(replica, name) in counted else 1
        pause = min(policy.longest_pause, policy.first_pause * 2.0 ** (tries - 1))
        counted[_key(replica, name)] = Refusal(tries, now + pause)
        judged[name] = replace(failure, is_final=failure.is_final or tries >= policy.loads_before_failure)
    return counted, judged


def still_open(refusals: Refusals, replicas: Sequence[Replica]) -> Refusals:
    """Return the refusals without those of replicas that are gone, and of what is loaded now."""
    open_keys = {key for replica in replicas for key in refusals if _misses(replica, *key)}
    return {key: refusals[key] for key in open_keys}


def ends(
    refusals: Refusals, replicas: Sequence[Replica], *, now: datetime, policy: Policy
) -> tuple[End, ...]:
    """Replicas that will not take what another one serves: they are started again."""
    ready = [replica for replica in replicas if replica.phase is Phase.READY]
    loaded = {name for replica in ready for name in replica.loaded}
    actions = []
    for replica in ready:
        stubborn = [
            name
            for name in sorted(loaded - replica.loaded)
            if (refusal := refusals.get(_key(replica, name))) and refusal.tries >= policy.loads_before_failure
        ]
        if stubborn:
            reason = f"{stubborn[0]} could not be loaded {policy.loads_before_failure} times"
            actions.append(end(replica, reason, now=now, policy=policy))
    return tuple(actions)


def _key(replica: Replica, served_name: str) -> tuple[str, str]:
    return replica.address.incarnation, served_name


def _misses(replica: Replica, incarnation: str, served_name: str) -> bool:
    return replica.address.incarnation == incarnation and served_name not in replica.loaded
