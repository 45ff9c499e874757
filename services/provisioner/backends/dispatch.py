"""The backends of all pools at once: which one has an attempt follows from its pool."""

from collections.abc import Iterable, Mapping

from services.provisioner.backends.protocol import Backend, BackendFailed
from services.provisioner.model import LOCAL, Pool


class Backends:
    def __init__(self, local: Backend) -> None:
        self._local = local
        self._of_pool: dict[str, Backend] = {}

    def use(self, pools: Iterable[Pool], others: Mapping[str, Backend]) -> None:
        """Use these pools. `others`: the backends of pools that are not of this machine, as the file has them."""
        local = {pool.name: self._local for pool in pools if pool.backend == LOCAL}
        self._of_pool = {**local, **others}

    def of(self, pool: str) -> Backend:
        """Raises BackendFailed where the pool's backend is not known (any more)."""
        try:
            return self._of_pool[pool]
        except KeyError:
            message = f"pool {pool} is not in the pools file, which says where its backend is; put it back"
            raise BackendFailed(message) from None

    def all(self) -> list[Backend]:
        """Return each backend once, that of this machine first."""
        return list(dict.fromkeys((self._local, *self._of_pool.values())))
