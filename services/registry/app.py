"""The registry: model versions and their lineage, stages, slots."""

from services.registry import handlers
from services.registry.clients import ArtefactCopies, BaseModelMirror, HuggingFaceHub
from services.registry.settings import Settings
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("registry", settings)
    handlers.register(
        service,
        mirror=BaseModelMirror(
            service.objects, HuggingFaceHub(settings.hub_endpoint), scratch=settings.scratch_dir
        ),
        copies=ArtefactCopies(service.objects, scratch=settings.scratch_dir),
        attempts=settings.copy_attempts,
    )
    return service


if __name__ == "__main__":
    build().run()
