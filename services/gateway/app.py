"""Wiring of the gateway: `python -m services.gateway.app`."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from types import ModuleType

import httpx
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from services.gateway import alerts as gateway_alerts
from services.gateway import deployments, errors, handlers, page, recent_events, store, usage
from services.gateway.deps import Gateway
from services.gateway.middleware import BoundedBody, HttpsOnly, Identified, Measured, Traced
from services.gateway.page import problems
from services.gateway.removal import Remover
from services.gateway.responses import ErrorBody
from services.gateway.results import Results
from services.gateway.routes import (
    admin,
    alerts,
    chat,
    checkpoints,
    costs,
    datasets,
    evaluations,
    events,
    exports,
    files,
    jobs,
    kafka_users,
    models,
    progress,
    quotas,
    reference,
    refusals,
    suites,
    sweeps,
    uploads,
    webhooks,
)
from services.gateway.settings import Settings
from services.gateway.uses import Uses
from services.gateway.webhooks import store as webhook_store
from services.gateway.webhooks.decide import BackOff
from services.gateway.webhooks.deliverer import Deliverer
from services.gateway.webhooks.sender import Sender
from shared.health import RETRY_AFTER
from shared.log import configure_logging
from shared.replica_http import replica_client
from shared.server import serve
from shared.service import Service
from shared.telemetry.export import configure_telemetry
from shared.telemetry.metrics_route import metrics_app

LOOK_AT_BUDGETS_EVERY = timedelta(seconds=5)


def build(settings: Settings | None = None) -> FastAPI:
    settings = settings or Settings()
    service = Service("gateway", settings)
    handlers.register(service, settings.quotas)
    Remover(service).register()
    Results(service, settings.scratch_dir).register()
    uses = Uses(service)
    uses.register()
    sender = _deliver_webhooks(service, settings)
    for query in store.PRUNED:
        service.prune(query, older_than=settings.timing.history_retention)
    service.prune(gateway_alerts.PRUNE_MUTES, older_than=settings.timing.history_retention)
    service.prune(deployments.PRUNE_GENERATIONS, older_than=settings.timing.history_retention)
    for query in recent_events.PRUNED:
        service.prune(query, older_than=settings.event_retention)
    service.on_start(lambda: _bootstrap(service, settings))

    async def look_at_budgets() -> None:
        async with service.unit() as unit:
            await usage.look_at_budgets(unit, settings.quotas)

    service.every(LOOK_AT_BUDGETS_EVERY, look_at_budgets, singleton=True)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        settings.scratch_dir.mkdir(parents=True, exist_ok=True)
        timeout = httpx.Timeout(settings.inference_timeout_seconds, connect=5.0)
        async with replica_client(settings.tls, timeout=timeout) as http, service.running():
            app.state.gateway = Gateway(service, settings, http, uses, sender)
            yield

    app = api(lifespan)
    app.state.service = service
    app.add_middleware(BoundedBody, upload_bytes=settings.max_upload_bytes)
    app.add_middleware(Traced)
    app.add_middleware(Measured)
    app.add_middleware(Identified)
    app.add_middleware(HttpsOnly)
    app.mount("/metrics", metrics_app())

    @app.get("/livez", include_in_schema=False)
    async def livez() -> JSONResponse:
        return JSONResponse({"alive": True})

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> JSONResponse:
        status, body = service.probe.answer()
        return JSONResponse(body, status, None if status == 200 else RETRY_AFTER)

    return app


def api(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None) -> FastAPI:
    """The routes, without what they work on."""
    app = FastAPI(
        title="retune",
        version="0.1.0",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: "_".join([*map(str, route.tags), route.name]),
        responses={"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}},
    )
    errors.install(app, problems.shown)
    for each in (jobs, progress, checkpoints):
        app.include_router(each.router, prefix="/v1/fine_tuning", tags=[_noun(each)])
        app.include_router(each.router, prefix="/v1/fine-tuning", include_in_schema=False)
    # The last route of models takes any path below /models.
    for each in (
        files,
        uploads,
        evaluations,
        quotas,
        exports,
        models,
        chat,
        datasets,
        suites,
        refusals,
        alerts,
        events,
        costs,
        sweeps,
        admin,
        kafka_users,
        webhooks,
    ):
        app.include_router(each.router, prefix="/v1", tags=[_noun(each)])
    app.include_router(reference.router)
    for router in page.ROUTERS:
        app.include_router(router, include_in_schema=False)
    return app


def _noun(routes: ModuleType) -> str:
    return routes.__name__.rpartition(".")[2]


def _deliver_webhooks(service: Service, settings: Settings) -> Sender:
    sender = Sender(
        secret=settings.webhook_secret.get_secret_value(),
        allow_http=settings.webhook_allow_http,
        networks=settings.webhook_allowed_networks,
        timeout_seconds=settings.webhook_timeout_seconds,
    )
    deliverer = Deliverer(
        service,
        sender,
        owner=f"gateway-{settings.instance}",
        timeout=timedelta(seconds=settings.webhook_timeout_seconds),
        back_off=BackOff(shortest=timedelta(seconds=settings.webhook_retry_seconds)),
        limit=settings.webhook_max_in_flight,
    )
    deliverer.register()
    for query in webhook_store.PRUNED:
        service.prune(query, older_than=settings.webhook_retention)
    return sender


async def _bootstrap(service: Service, settings: Settings) -> None:
    """The first tenant of a fresh stack, whose topics were set up with it; its key is stored hashed.

    Defaults of quotas that other services apply may be others than before: they are sent for each tenant that they
    concern.
    """
    async with service.unit() as unit:
        await store.add_tenant(unit.conn, settings.bootstrap_tenant, "standard")
        await store.set_topics(unit.conn, settings.bootstrap_tenant)
        await store.add_key(
            unit.conn, settings.bootstrap_tenant, settings.bootstrap_api_key.get_secret_value()
        )
        await usage.apply_limits(unit, settings.quotas)


def main() -> None:
    settings = Settings()
    configure_logging("gateway")
    configure_telemetry("gateway")
    app = build(settings)

    def stop() -> None:
        app.state.gateway.stop()

    serve(app, settings, on_stop=stop)


if __name__ == "__main__":
    main()
