"""A lease of devices as its holder knows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from schemas.base import DeviceKind
from schemas.node import LeasedNode


class LeaseState(StrEnum):
    ASKED = "asked"
    QUEUED = "queued"  # the provisioner has nothing free
    HELD = "held"
    ENDED = "ended"  # over, though nobody gave it back
    REFUSED = "refused"  # the pool cannot lease this, or its backend started no node for it, or ended that


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
    node: LeasedNode | None = None
    """Where the devices are; None: on the provisioner's machine, or not known yet."""

    def is_awaited(self, now: datetime) -> bool:
        """Return whether the provisioner is still to say what becomes of it: it has answered nothing yet, there is no
        room, or what it confirmed last is over.
        """
        if self.state is LeaseState.HELD:
            return self.until is None or self.until <= now
        return self.state in (LeaseState.ASKED, LeaseState.QUEUED)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that leave a process no other GPUs than these; none on a CPU, where devices are places, and
        on a node of another backend, which assigns them itself."""
        if self.device is not DeviceKind.CUDA or self.node is not None:
            return {}
        numbers = ",".join(map(str, self.devices))
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": numbers}
