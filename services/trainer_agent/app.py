"""The control side of training: barrier, stops, heartbeats, claims into facts."""

from services.trainer_agent import handlers
from services.trainer_agent.settings import Settings
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("trainer_agent", settings)
    handlers.register(service)
    return service


if __name__ == "__main__":
    build().run()
