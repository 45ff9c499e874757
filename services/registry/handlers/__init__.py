"""What the registry does with each message: load, decide, save, emit."""

from services.registry.clients import ArtifactCopies, BaseModelMirror
from services.registry.handlers import base_models, slots, versions
from shared.service import Service


def register(service: Service, *, mirror: BaseModelMirror, copies: ArtifactCopies, attempts: int) -> None:
    base_models.register(service, mirror, attempts=attempts)
    versions.register(service, copies, attempts=attempts)
    slots.register(service)
