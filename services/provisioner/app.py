"""Pools and nodes: turns scheduled attempts into node runners through a backend."""

from functools import partial

from services.provisioner import handlers, store
from services.provisioner.backends.dispatch import Backends
from services.provisioner.backends.local import LocalBackend
from services.provisioner.backends.slurm import slurm_backends
from services.provisioner.settings import Settings
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("provisioner", settings)
    local = LocalBackend(
        settings.nodes_dir,
        runner_env_file=settings.runner_env_file,
        logs_retention=settings.logs_retention,
    )
    connect = partial(
        slurm_backends, env_file=settings.runner_env_file, logs_retention=settings.logs_retention
    )
    handlers.register(service, Backends(local), pools_file=settings.pools_file, connect=connect)
    for query in (store.PRUNE_NODES, store.PRUNE_ATTEMPTS, store.PRUNE_FAILURES):
        service.prune(query, older_than=settings.timing.history_retention)
    return service


if __name__ == "__main__":
    build().run()
