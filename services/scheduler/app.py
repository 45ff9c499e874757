"""The scheduler: the one decider of a job's state."""

from services.scheduler import handlers, loops, store
from services.scheduler.decide.decision import Policy
from services.scheduler.gauges import GAUGES
from services.scheduler.settings import Settings
from shared.service import Service
from shared.telemetry.row_gauges import SHOW_EVERY, RowGauges


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("scheduler", settings)
    policy = Policy(start_within=settings.start_within, grow_after=settings.grow_after)
    loops.register(
        service,
        handlers.register(service, policy),
        look_every=settings.look_every,
        look_anyway_every=settings.look_anyway_every,
        announce_every=settings.announce_every,
    )
    for query in (store.PRUNE_IGNORED, store.PRUNE_ATTEMPTS):
        service.prune(query, older_than=settings.timing.history_retention)
    service.every(SHOW_EVERY, RowGauges(service.database, GAUGES).show)
    return service


if __name__ == "__main__":
    build().run()
