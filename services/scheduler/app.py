"""The scheduler: the one decider of a job's state."""

from services.scheduler import handlers
from services.scheduler.decide.decision import Policy
from services.scheduler.settings import Settings
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("scheduler", settings)
    handlers.register(service, Policy(start_within=settings.start_within), look_every=settings.look_every)
    return service


if __name__ == "__main__":
    build().run()
