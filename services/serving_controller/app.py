"""The serving controller: makes vLLM replicas serve what the registry approved, and nothing else."""

from datetime import timedelta

from prometheus_client import REGISTRY

from services.serving_controller import handlers, protocol, store
from services.serving_controller.clients.backend import ReplicaBackend, ReplicaFiles
from services.serving_controller.clients.files import LocalFiles, ModelFiles
from services.serving_controller.clients.keys import ReplicaKeys
from services.serving_controller.clients.local import LocalBackend
from services.serving_controller.clients.pool import PoolBackend
from services.serving_controller.gauges import GAUGES
from services.serving_controller.handlers.nodes import NodeDoor, Records
from services.serving_controller.handlers.rounds import ReconcileLoop
from services.serving_controller.handlers.steps import Steps
from services.serving_controller.replica_metrics import ReplicaMetrics
from services.serving_controller.settings import Settings
from shared.nodes.requests import MAX_BODY_BYTES
from shared.replica_http import replica_client
from shared.service import Service
from shared.telemetry.row_gauges import SHOW_EVERY, RowGauges

LOAD_TIMES_KEPT = timedelta(days=1)
"""Time after which what waits for a load is not timed any more."""


def build(settings: Settings | None = None) -> Service:
    settings = settings or Settings()
    service = Service("serving_controller", settings)
    http = replica_client(settings.tls)
    backend, files = _on_nodes(service, settings) if settings.on_nodes else _local(service, settings)
    steps = Steps(
        backend,
        files,
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
    service.prune(store.PRUNE_LOAD_TIMES, older_than=LOAD_TIMES_KEPT)
    service.every(SHOW_EVERY, RowGauges(service.database, GAUGES).show)
    replica_metrics = ReplicaMetrics(backend, http)
    REGISTRY.register(replica_metrics)
    service.every(SHOW_EVERY, replica_metrics.read)
    service.on_stop(replica_metrics.close)
    service.on_stop(http.aclose)
    return service


def _local(service: Service, settings: Settings) -> tuple[ReplicaBackend, ReplicaFiles]:
    backend = LocalBackend(settings.replicas_dir, settings.keys_dir, engine=settings.engine)
    files = ModelFiles(service.objects, scratch=settings.scratch_dir)
    return backend, LocalFiles(files, backend.folder)


def _on_nodes(service: Service, settings: Settings) -> tuple[ReplicaBackend, ReplicaFiles]:
    options = settings.engine.options
    before = LocalBackend(settings.replicas_dir, settings.keys_dir, engine=settings.engine)

    async def end_local() -> None:
        """End what ran on this machine before the setting was changed: nobody else would."""
        for replica_id in await before.list_owned():
            await before.end(replica_id)

    service.on_lead(end_local)
    door = NodeDoor(service, settings, engine=options)
    service.on_post(protocol.ROUTE, door.report, max_bytes=MAX_BODY_BYTES)
    service.on_post(protocol.OBJECTS_ROUTE, door.objects, max_bytes=MAX_BODY_BYTES)
    keys = ReplicaKeys(settings.replicas_dir, settings.keys_dir)
    backend = PoolBackend(Records(service), keys, engine=options)
    return backend, backend


if __name__ == "__main__":
    build().run()
