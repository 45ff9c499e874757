"""What the registry does with each message: load, decide, save, emit."""

from services.registry.clients import ArtifactCopies, BaseModelMirror, ModelExports
from services.registry.handlers import base_models, exports, slots, versions
from shared.service import Service


def register(
    service: Service,
    *,
    mirror: BaseModelMirror,
    copies: ArtifactCopies,
    model_exports: ModelExports,
    attempts: int,
) -> None:
    base_models.register(service, mirror, attempts=attempts)
    versions.register(service, copies, attempts=attempts)
    slots.register(service)
    exports.register(service, model_exports)
