"""A lease of devices as its holder knows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from schemas.base import DeviceKind


class LeaseState(StrEnum):
    ASKED = "asked"
    QUEUED = "queued"  # the provisioner has nothing free
    HELD = "held"
    ENDED = "ended"  # over, though nobody gave it back
    REFUSED = "refused"  # the pool cannot lease this


@dataclass(frozen=True)
class HeldLease:
    subject: str
    """What the devices are for: there is one lease for each."""
    lease_id: str
    state: LeaseState = LeaseState.ASKED
    devices: tuple[int, ...] = ()
    device: DeviceKind | None = None
    until: datetime | None = None
    """Until when the provisioner has confirmed it; None before it was given."""
    reason: str = ""
    """Why it waits, ended or was refused."""

    def is_awaited(self, now: datetime) -> bool:
        """Return whether the provisioner is still to say what becomes of it: it has answered nothing yet, there is no
        room, or what it confirmed last is over.
        """
        if self.state is LeaseState.HELD:
            return self.until is None or self.until <= now
        return self.state in (LeaseState.ASKED, LeaseState.QUEUED)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that leave a process no other GPUs than these; none on a CPU, where devices are places."""
        if self.device is not DeviceKind.CUDA:
            return {}
        numbers = ",".join(map(str, self.devices))
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": numbers}
