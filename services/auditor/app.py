"""Wiring of the auditor: `python -m services.auditor.app`."""

from services.auditor import handlers
from services.auditor.settings import Settings
from shared.messaging.login import Login
from shared.messaging.partitions import PartitionReader
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("auditor", settings)
    handlers.register(service, settings, PartitionReader(Login.of(settings)))
    return service


if __name__ == "__main__":
    build().run()
