"""Pools and nodes: turns scheduled attempts into node runners through a backend."""

from services.provisioner import handlers, store
from services.provisioner.backends.local import LocalBackend
from services.provisioner.settings import Settings
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("provisioner", settings)
    backend = LocalBackend(
        settings.nodes_dir,
        runner_env_file=settings.runner_env_file,
        logs_retention=settings.logs_retention,
    )
    handlers.register(service, backend, pools_file=settings.pools_file)
    for query in (store.PRUNE_NODES, store.PRUNE_ATTEMPTS):
        service.prune(query, older_than=settings.timing.history_retention)
    return service


if __name__ == "__main__":
    build().run()
