"""Wiring of the checkpoint watcher: `python -m services.checkpoint_watcher.app`."""

from services.checkpoint_watcher import handlers, store
from services.checkpoint_watcher.settings import Settings
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("checkpoint_watcher", settings)
    handlers.register(service, settings)
    service.prune(store.PRUNE_CHECKPOINTS, older_than=settings.timing.history_retention)
    return service


if __name__ == "__main__":
    build().run()
