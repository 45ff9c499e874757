"""Which faults are about: at random with a rate each, or single ones that wait for their place."""

import random

CRASHES = (
    "crash before the commit",
    "crash after the commit",
    "crash before publishing",
    "crash after publishing",
    "crash task",
)
PLACES = (*CRASHES, "rewind", "stall", "end late")
"""In the kernel of any service."""

LIES = (
    "create refused",
    "create answer lost",
    "create comes late",
    "runner never starts",
    "stop fails",
    "bundle corrupt",
    "storage away",
    "slow upload",
    "ack lost",
    "report held",
    "gate crashes",
    "copy fails",
    "load fails",
    "fetch fails",
)
"""Where engine, network, store or child processes are asked for something."""

KERNEL_RATES = {
    "crash before the commit": 0.002,
    "crash after the commit": 0.002,
    "crash before publishing": 0.002,
    "crash after publishing": 0.003,
    "crash task": 0.04,
    "rewind": 0.01,
    "stall": 0.002,
    "end late": 0.02,
}
LIE_RATE = 0.08
RARELY_ASKED = {"load fails": 0.4}
"""Rates of lies about what few worlds ask for, and seldom."""


class Faults:
    def __init__(self, rng: random.Random, rates: dict[str, float] | None = None) -> None:
        self._rng = rng
        self.rates = rates or {}
        self.armed: dict[tuple[str, str], int] = {}
        """(kind, service or nothing) -> how often it will strike."""
        self.struck: dict[str, int] = {}
        self.active = bool(rates)

    @classmethod
    def some(cls, rng: random.Random) -> "Faults":
        """A subset of all kinds, so that rare combinations are not drowned by frequent ones."""
        share = rng.choice((0.2, 0.5, 0.9))
        rates = {kind: rate for kind, rate in KERNEL_RATES.items() if rng.random() < share}
        rates |= {kind: RARELY_ASKED.get(kind, LIE_RATE) for kind in LIES if rng.random() < share}
        return cls(rng, rates)

    def arm(self, kind: str, who: str = "") -> None:
        self.armed[kind, who] = self.armed.get((kind, who), 0) + 1
        self.active = True

    def strikes(self, kind: str, who: str = "") -> bool:
        if not self.active:
            return False
        rate = self.rates.get(kind)
        strikes = rate is not None and self._rng.random() < rate
        if not strikes and self.armed:
            strikes = self._is_armed(kind, who)
        if strikes:
            self.count(kind)
        return strikes

    def count(self, kind: str) -> None:
        self.struck[kind] = self.struck.get(kind, 0) + 1

    def end(self) -> None:
        self.active = False
        self.rates = {}
        self.armed = {}

    def _is_armed(self, kind: str, who: str) -> bool:
        left = self.armed.get((kind, who), 0)
        if left:
            self.armed[kind, who] = left - 1
        return left > 0
