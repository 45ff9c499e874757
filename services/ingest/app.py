"""Wiring of ingest: `python -m services.ingest.app`."""

from services.ingest import handlers
from services.ingest.clients import Validator
from services.ingest.settings import Settings
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("ingest", settings)
    validator = Validator(service.objects, settings)
    handlers.register(service, validator, validations_at_once=settings.validations_at_once)
    return service


if __name__ == "__main__":
    build().run()
