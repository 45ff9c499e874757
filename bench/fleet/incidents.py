"""What breaks and what is taken back, drawn before anything runs: every policy meets the same.

Interruptions: 419 in 54 days on 16,384 GPUs, of which 78 % came from hardware (Grattafiori et al., "The Llama 3
  Herd of Models", 2024).
Hardware that failed stays broken: each attempt that starts there fails, until the machine is cordoned and repaired.
What else interrupts ends the attempts on the machine and leaves it as it was.
Spot machines are taken back with notice and come back later. No cloud publishes how often; a machine is taken back
  every five days on average and is away for an hour.
A repair takes a day. Both are assumptions.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from bench.fleet.workload import DAY, DEVICES_OF_MACHINE, SPOT, Sizing

INTERRUPTIONS_OF_DEVICE_A_SECOND = 419 / (54 * DAY * 16_384)
OF_HARDWARE = 0.78
REPAIR_SECONDS = DAY
RECLAIMED_EVERY = 5 * DAY
AWAY_SECONDS = 3600.0


class IncidentKind(StrEnum):
    BROKEN = "broken"
    INTERRUPTED = "interrupted"
    RECLAIMED = "reclaimed"


@dataclass(frozen=True, order=True)
class Incident:
    at: float
    pool: str
    machine: int
    kind: IncidentKind
    until: float
    """From when the machine takes work again, if it is repaired at once."""


def incidents(sizing: Sizing, *, days: float, seed: int) -> list[Incident]:
    draw = random.Random(f"incidents {sizing.name} {seed}")
    return sorted(each for each in _all(sizing, days * DAY, draw))


def _all(sizing: Sizing, end: float, draw: random.Random) -> Iterator[Incident]:
    often = INTERRUPTIONS_OF_DEVICE_A_SECOND * DEVICES_OF_MACHINE
    for pool in sizing.pools:
        for machine in range(pool.machines):
            at = draw.expovariate(often)
            while at < end:
                is_broken = draw.random() < OF_HARDWARE
                kind = IncidentKind.BROKEN if is_broken else IncidentKind.INTERRUPTED
                until = at + (REPAIR_SECONDS if is_broken else 0)
                yield Incident(at, pool.name, machine, kind, until)
                at = until + draw.expovariate(often)
            at = draw.expovariate(1 / RECLAIMED_EVERY) if pool.capacity_type is SPOT else end
            while at < end:
                until = at + draw.expovariate(1 / AWAY_SECONDS)
                yield Incident(at, pool.name, machine, IncidentKind.RECLAIMED, until)
                at = until + draw.expovariate(1 / RECLAIMED_EVERY)
