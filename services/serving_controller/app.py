"""The serving controller: makes vLLM replicas serve what the registry approved, and nothing else."""

from datetime import timedelta

from prometheus_client import REGISTRY

from services.serving_controller import handlers
from services.serving_controller.clients.files import ModelFiles
from services.serving_controller.clients.local import LocalBackend
from services.serving_controller.gauges import GAUGES
from services.serving_controller.handlers.rounds import ReconcileLoop
from services.serving_controller.handlers.steps import Steps
from services.serving_controller.replica_metrics import ReplicaMetrics
from services.serving_controller.settings import Settings
from shared.http_client import http_client
from shared.service import Service
from shared.telemetry.row_gauges import SHOW_EVERY, RowGauges


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("serving_controller", settings)
    http = http_client(settings.tls)
    backend = LocalBackend(settings.replicas_dir, settings.keys_dir, engine=settings.engine)
    steps = Steps(
        backend,
        ModelFiles(service.objects, scratch=settings.scratch_dir),
        http,
        policy=settings.policy,
        clock=service.clock,
    )
    reconcile_loop = ReconcileLoop(
        service,
        steps,
        policy=settings.policy,
        unanswered=timedelta(seconds=settings.unanswered_seconds),
        leases=settings.leases,
    )
    handlers.register(
        service,
        reconcile_loop,
        keep=settings.policy.keep,
        look_every=timedelta(seconds=settings.look_every_seconds),
    )
    service.every(SHOW_EVERY, RowGauges(service.database, GAUGES).show)
    replica_metrics = ReplicaMetrics(backend, http)
    REGISTRY.register(replica_metrics)
    service.every(SHOW_EVERY, replica_metrics.read)
    service.on_stop(replica_metrics.close)
    service.on_stop(http.aclose)
    return service


if __name__ == "__main__":
    build().run()
