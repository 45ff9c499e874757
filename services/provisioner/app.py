"""Pools and nodes: turns scheduled attempts into node runners through a backend."""

from collections.abc import Mapping

from services.provisioner import handlers, store
from services.provisioner.backends.dispatch import Backends
from services.provisioner.backends.local import LocalBackend
from services.provisioner.backends.protocol import Backend
from services.provisioner.backends.slurm import slurm_backends
from services.provisioner.gauges import GAUGES
from services.provisioner.node_keys import NodeKeys
from services.provisioner.settings import ClusterPool, KubernetesPool, Settings, SlurmPool
from shared.service import Service
from shared.telemetry.row_gauges import SHOW_EVERY, RowGauges


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("provisioner", settings)
    node_keys = NodeKeys(settings.node_keys_secret)
    local = LocalBackend(
        settings.nodes_dir,
        runner_env_file=settings.runner_env_file,
        node_keys=node_keys,
        logs_retention=settings.logs_retention,
    )

    def connect(pools: Mapping[str, ClusterPool]) -> Mapping[str, Backend]:
        return _backends(pools, settings, node_keys)

    handlers.register(
        service,
        Backends(local),
        node_keys,
        pools_file=settings.pools_file,
        connect=connect,
        count_every=settings.count_every,
    )
    for query in (
        store.PRUNE_NODES,
        store.PRUNE_ATTEMPTS,
        store.PRUNE_FAILURES,
        store.PRUNE_LEASE_FAILURES,
        store.PRUNE_SERVICE_LEASES,
    ):
        service.prune(query, older_than=settings.timing.history_retention)
    service.every(SHOW_EVERY, RowGauges(service.database, GAUGES).show)
    return service


def _backends(
    pools: Mapping[str, ClusterPool], settings: Settings, node_keys: NodeKeys
) -> Mapping[str, Backend]:
    slurm = {name: pool for name, pool in pools.items() if isinstance(pool, SlurmPool)}
    kubernetes = {name: pool for name, pool in pools.items() if isinstance(pool, KubernetesPool)}
    backends: dict[str, Backend] = {
        **slurm_backends(
            slurm,
            env_file=settings.runner_env_file,
            node_keys=node_keys,
            logs_retention=settings.logs_retention,
        )
    }
    if kubernetes:
        # Its client takes 44 MB, which a provisioner without such pools does not need.
        from services.provisioner.backends.kubernetes import kubernetes_backends

        backends |= kubernetes_backends(
            kubernetes, node_keys=node_keys, logs_retention=settings.logs_retention
        )
    return backends


if __name__ == "__main__":
    build().run()
