"""Every page of the gateway and its address: a browser visits each, and `make screenshots` takes a picture of each."""

from collections.abc import Mapping

from tests.integration.gateway.pages import Shown
from tests.integration.gateway.pictured import Pictured

PAGES: Mapping[str, str] = {
    "now": "/",
    "jobs": "/jobs",
    "jobs-worst": "/jobs?sort=worst",
    "jobs-search": "/jobs?q=status%3Afailed+sweep",
    "jobs-none": "/jobs?q=nothing-like-this",
    "job-curves": "/jobs/{running}",
    "job-queued": "/jobs/{queued}",
    "job-timeline": "/jobs/{running}/timeline",
    "job-attempts": "/jobs/{gated}/timeline",
    "job-queued-timeline": "/jobs/{queued}/timeline",
    "job-logs": "/jobs/{running}/logs",
    "job-checkpoints": "/jobs/{running}/checkpoints",
    "job-settings": "/jobs/{running}/settings",
    "job-cost": "/jobs/{running}/cost",
    "job-events": "/jobs/{running}/events",
    "job-timeline-types": "/jobs/{running}/timeline?type=JobScheduled&type=TrainingResumed",
    "job-failed": "/jobs/{failed}/timeline",
    "job-failed-settings": "/jobs/{failed}/settings",
    "new-job": "/jobs/new",
    "new-job-like": "/jobs/new?from={running}",
    "compare": "/compare?runs={running},{gated},{queued}",
    "datasets": "/datasets",
    "datasets-search": "/datasets?q=status%3Aready+support",
    "datasets-none": "/datasets?q=nothing-like-this",
    "dataset": "/datasets/{dataset}",
    "dataset-priced": "/datasets/{priced}",
    "dataset-rejected": "/datasets/{rejected}",
    "models": "/models",
    "models-search": "/models?q=status%3Astaging",
    "model": "/models/{served}",
    "exports": "/models/{exported}/exports",
    "deployments": "/deployments",
    "deployments-search": "/deployments?q=status%3Awithdrawn+handbook",
    "deployment": "/deployments/handbook/history",
    "gate": "/models/{model}/gate",
    "sweeps": "/sweeps",
    "sweeps-search": "/sweeps?q=status%3Asucceeded",
    "sweep": "/sweeps/{sweep}",
    "new-sweep": "/sweeps/new",
    "new-sweep-like": "/sweeps/new?from={sweep}",
    "alerts": "/alerts",
    "alert": "/alerts/{alert}",
    "costs": "/costs",
    "costs-none": "/costs?month=2020-01",
    "events": "/events",
    "events-none": "/events?q=nothing-like-this",
    "event": "/events/{event}",
    "webhooks": "/webhooks",
    "webhooks-search": "/webhooks?q=status%3Aenabled+example.com",
    "webhook": "/webhooks/{webhook}",
    "admin": "/admin",
    "admin-machines": "/admin/machines",
    "admin-tenant": "/admin/tenants/{tenant}",
    "admin-costs": "/admin/costs",
    "admin-subscribers": "/admin/subscribers",
    "admin-audit": "/admin/audit",
    "login": "/login",
    "admin-refused": "/login?next=/admin",
    "not-found": "/jobs/ftjob-nobody",
    "nowhere": "/nowhere",
}
"""Name of each picture, and the address of the page on it; in braces what `addresses` has an id for."""
NOT_VISITED: Mapping[str, str] = {
    "/static/{digest}/{name:path}": "what pages are made of",
    "/jobs/{job_id}/curve": "numbers that the page of the job draws",
    "/jobs/{job_id}/log": "lines that the page of the job adds",
    "/jobs/new/sample-{kind}.jsonl": "a file to download",
    "/datasets/{dataset_id}/report.json": "a file to download",
    "/models/{model_id}/exports/{export_id}/files/{path}": "a file to download",
    "/costs.csv": "a file to download",
    "/admin/costs.csv": "a file to download",
}
"""Routes beside the pages, and why nobody reads them in a browser. Streams of events are not among them."""


def addresses(shown: Shown, pictured: Pictured) -> dict[str, str]:
    ids = vars(shown) | vars(pictured) | {"served": shown.served.model_id, "model": shown.model.model_id}
    return {name: address.format(**ids) for name, address in PAGES.items()}
