"""Wiring of the tracker: `python -m services.tracker.app`."""

from services.tracker import handlers, mirror_store, mute_store, store, sweep_store
from services.tracker.mirror_handlers import Mirror
from services.tracker.settings import Settings
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("tracker", settings)
    handlers.register(service, Mirror(settings))
    service.prune(store.PRUNE_STEPS, older_than=settings.timing.history_retention)
    service.prune(store.PRUNE_WATCHES, older_than=settings.timing.history_retention)
    service.prune(mute_store.PRUNE_MUTES, older_than=settings.timing.history_retention)
    service.prune(mirror_store.PRUNE_RUNS, older_than=settings.timing.history_retention)
    service.prune(sweep_store.PRUNE_SWEEPS, older_than=settings.timing.history_retention)
    return service


if __name__ == "__main__":
    build().run()
