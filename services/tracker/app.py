"""Wiring of the tracker: `python -m services.tracker.app`."""

from services.tracker import handlers
from services.tracker.settings import Settings
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    service = Service("tracker", settings or Settings())
    handlers.register(service)
    return service


if __name__ == "__main__":
    build().run()
