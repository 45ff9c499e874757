"""How long deployments took from their approval until requests were routed to them. Pure."""

import json
from collections.abc import Sequence
from datetime import datetime

from services.gateway.recent_events import SentRecord

LOOKED_AT = 500
"""Approvals, and first moments of readiness, that are looked at."""
Generation = tuple[str, int]
"""A slot and the number of its desired state."""


def seconds_until_ready(
    approved: Sequence[SentRecord], ready: Sequence[SentRecord]
) -> dict[Generation, float]:
    """Return seconds from DeploymentApproved to the first DeploymentReady of a generation, of those that have both.

    A version is ready once more whenever it is loaded again: where the first time may be among the events that were
    not looked at, nothing is known. Both: at most `LOOKED_AT`, the newest first.
    """
    begun = {_generation(each): each.sent_at for each in reversed(approved)}
    first: dict[Generation, datetime] = {}
    for each in reversed(ready):
        first.setdefault(_generation(each), each.sent_at)
    looked_since = ready[-1].sent_at if len(ready) >= LOOKED_AT else None
    return {
        generation: max(0.0, (first[generation] - at).total_seconds())
        for generation, at in begun.items()
        if generation in first and (looked_since is None or looked_since < at)
    }


def _generation(record: SentRecord) -> Generation:
    fact = json.loads(record.payload)
    return str(fact["slot"]), int(fact["generation"])
