"""The backend of Slurm: an attempt is a job, and its nodes are the job's tasks."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from services.provisioner.backends.protocol import Backend
from services.provisioner.backends.slurm.backend import SlurmBackend
from services.provisioner.node_keys import NodeKeys
from services.provisioner.settings import SlurmPool


def slurm_backends(
    pools: Mapping[str, SlurmPool], *, env_file: Path, node_keys: NodeKeys, logs_retention: timedelta
) -> Mapping[str, Backend]:
    """Return the backend of each pool: one for all pools with the same folder on the same cluster."""
    places = {(pool.folder, pool.conf) for pool in pools.values()}
    backends = {
        place: SlurmBackend(
            {name: pool for name, pool in pools.items() if (pool.folder, pool.conf) == place},
            env_file=env_file,
            node_keys=node_keys,
            logs_retention=logs_retention,
        )
        for place in places
    }
    return {name: backends[pool.folder, pool.conf] for name, pool in pools.items()}
