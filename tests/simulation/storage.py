"""The bundles in S3: a manifest exists or not, and what it names may be corrupt."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas.base import BestBundle, BundleRef
from services.checkpoint_watcher.clients import Verdict
from shared.errors import StorageUnavailable
from tests.builders import a_sha
from tests.simulation.clock import pause

if TYPE_CHECKING:
    from tests.simulation.world import World

Key = tuple[str, int, int]


@dataclass(frozen=True)
class Bundle:
    ref: BundleRef
    is_corrupt: bool


class Storage:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.bundles: dict[Key, Bundle] = {}
        self.deleted: set[Key] = set()
        self.best: dict[tuple[str, BundleRef], BestBundle] = {}
        """Which one a bundle's manifest names as the best."""

    def put(self, job_id: str, attempt: int, step: int) -> BundleRef:
        """Write-once. The same step has the same digest, whichever attempt comes to it."""
        key = (job_id, attempt, step)
        if key not in self.bundles:
            ref = BundleRef(attempt=attempt, step=step, manifest_sha256=a_sha(f"{job_id} {step}"))
            self.bundles[key] = Bundle(ref, self._world.faults.strikes("bundle corrupt"))
        return self.bundles[key].ref

    def find(self, job_id: str, bundle: BundleRef) -> Bundle | None:
        return self.bundles.get((job_id, bundle.attempt, bundle.step))

    async def verify_bundle(self, objects: None, job_id: str, bundle: BundleRef) -> Verdict:
        await self.be_away()
        await pause(self._world.rng.uniform(0.1, 3.0))
        stored = self.find(job_id, bundle)
        if stored is None:
            return Verdict(0, "the manifest does not exist")
        return Verdict(0, "a part is corrupt") if stored.is_corrupt else Verdict(1, "")

    async def delete_bundle(self, objects: None, job_id: str, bundle: BundleRef) -> None:
        await self.be_away()
        await pause(0.2)
        key = (job_id, bundle.attempt, bundle.step)
        self.bundles.pop(key, None)
        self.deleted.add(key)

    async def delete_all(self, objects: None, job_id: str, attempts: int) -> None:
        await self.be_away()
        await pause(0.2)
        for key in [key for key in self.bundles if key[0] == job_id]:
            del self.bundles[key]
            self.deleted.add(key)

    async def delete_logs(self, objects: None, job_id: str) -> None:
        """Logs are not kept here."""
        await self.be_away()

    async def delete_abandoned(self, objects: None, job_id: str, attempt: int) -> int:
        """Parts without a manifest are not kept here."""
        return 0

    async def be_away(self) -> None:
        if self._world.faults.strikes("storage away"):
            await pause(self._world.rng.uniform(1.0, 20.0))
            raise StorageUnavailable("storage is away")
