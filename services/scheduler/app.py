"""The scheduler: the one decider of a job's state."""

from datetime import timedelta

from services.scheduler import handlers, store
from services.scheduler.decide.decision import Policy
from services.scheduler.settings import Settings
from shared.service import Service

KEEP_IGNORED = timedelta(days=60)
"""Longer than any topic keeps what was ignored."""


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("scheduler", settings)
    handlers.register(
        service,
        Policy(start_within=settings.start_within),
        look_every=settings.look_every,
        announce_every=settings.announce_every,
    )
    service.prune(store.PRUNE_IGNORED, older_than=KEEP_IGNORED)
    return service


if __name__ == "__main__":
    build().run()
