"""The web page of the platform: HTML of what the JSON routes answer, for people who log in with an API key."""

from services.gateway.page import (
    alerts,
    ask,
    compare,
    costs,
    datasets,
    events,
    gates,
    job,
    jobs,
    login,
    models,
    new_job,
    new_sweep,
    now,
    sweeps,
    webhooks,
)

ROUTERS = (
    login.router,
    now.router,
    new_job.router,
    jobs.router,
    job.router,
    gates.router,
    models.router,
    ask.router,
    datasets.router,
    compare.router,
    alerts.router,
    new_sweep.router,
    sweeps.router,
    costs.router,
    events.router,
    webhooks.router,
)
