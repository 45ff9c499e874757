"""Wiring of accounts: `python -m services.accounts.app`."""

from services.accounts import handlers
from services.accounts.clients import KafkaBroker
from services.accounts.settings import Settings
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("accounts", settings)
    handlers.register(service, KafkaBroker(settings))
    return service


if __name__ == "__main__":
    build().run()
