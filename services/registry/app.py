"""The registry: model versions and their lineage, stages, slots."""

from services.registry import handlers
from services.registry.clients import ArtifactCopies, BaseModelMirror, HuggingFaceHub, Limits, ModelExports
from services.registry.settings import Settings
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("registry", settings)
    handlers.register(
        service,
        mirror=BaseModelMirror(
            service.objects,
            HuggingFaceHub(settings.hub_endpoint, settings.hub_token),
            scratch=settings.scratch_dir,
            limits=Limits(
                settings.import_max_files, settings.import_max_file_bytes, settings.import_max_total_bytes
            ),
        ),
        copies=ArtifactCopies(service.objects, scratch=settings.scratch_dir),
        model_exports=ModelExports(
            service.objects,
            scratch=settings.scratch_dir,
            limit=settings.export_limit,
            memory_bytes=settings.export_memory_bytes,
            threads=settings.export_threads,
        ),
        attempts=settings.copy_attempts,
    )
    return service


if __name__ == "__main__":
    build().run()
