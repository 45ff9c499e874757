"""The control side of training: barrier, stops, heartbeats, claims into facts."""

from datetime import timedelta

from schemas.object_requests import MAX_BODY_BYTES, ROUTE
from schemas.topics import AGENT_REPORTS
from services.trainer_agent import handlers, store
from services.trainer_agent.object_requests import ObjectRequestDoor
from services.trainer_agent.settings import Settings
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("trainer_agent", settings)
    handlers.register(service)
    service.on_post(ROUTE, ObjectRequestDoor(service, settings).answer, max_bytes=MAX_BODY_BYTES)
    service.prune(store.PRUNE_KEPT, older_than=timedelta(days=AGENT_REPORTS.retention_days))
    for query in (store.PRUNE_DROPPED, store.PRUNE_RUNNERS, store.PRUNE_ATTEMPTS):
        service.prune(query, older_than=settings.timing.history_retention)
    return service


if __name__ == "__main__":
    build().run()
