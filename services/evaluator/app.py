"""Wiring of the evaluator: `python -m services.evaluator.app`."""

from services.evaluator import handlers
from services.evaluator.settings import Settings
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("evaluator", settings)
    handlers.register(service, settings)
    return service


if __name__ == "__main__":
    build().run()
