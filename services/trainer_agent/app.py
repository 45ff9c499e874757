"""The control side of training: barrier, stops, heartbeats, claims into facts."""

from datetime import timedelta

from schemas import directives, object_requests
from schemas.topics import AGENT_REPORTS
from services.trainer_agent import handlers, store
from services.trainer_agent.directives import Changes, DirectiveDoor
from services.trainer_agent.node_requests import KnownAttempts
from services.trainer_agent.object_requests import ObjectRequestDoor
from services.trainer_agent.settings import Settings
from shared.service import Service

RESTART_AFTER = timedelta(seconds=1)
"""Time from a failure of a loop that has its own pace to its next try."""


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("trainer_agent", settings)
    handlers.register(service)
    _open_doors(service, settings)
    service.prune(store.PRUNE_KEPT, older_than=timedelta(days=AGENT_REPORTS.retention_days))
    for query in (store.PRUNE_DROPPED, store.PRUNE_RUNNERS, store.PRUNE_ATTEMPTS):
        service.prune(query, older_than=settings.timing.history_retention)
    return service


def _open_doors(service: Service, settings: Settings) -> None:
    attempts, changes = KnownAttempts(service), Changes(service)
    objects = ObjectRequestDoor(service, settings, attempts)
    service.on_post(object_requests.ROUTE, objects.answer, max_bytes=object_requests.MAX_BODY_BYTES)
    door = DirectiveDoor(service, attempts, changes)
    service.on_post(directives.ROUTE, door.answer, max_bytes=directives.MAX_BODY_BYTES)
    service.every(RESTART_AFTER, changes.watch)


if __name__ == "__main__":
    build().run()
