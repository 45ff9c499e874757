"""The lists of routes that tenants are kept apart by (`tests/integration/gateway/test_gateway.py`) leave none out."""

import importlib
import pkgutil
import re

from services.gateway import routes
from tests.integration.gateway.owned_routes import ELSE, LISTS, OF_A_JOB

PARAMETERS = {
    "job_id": "job",
    "name:path": "model",
    "slot:path": "model",
    "dataset_id": "dataset",
    "event_id": "event",
    "sweep_id": "sweep",
    "file_id": "file",
    "upload_id": "upload",
    "endpoint_id": "webhook_endpoint",
    "delivery_id": "webhook_delivery",
    "mute": "alert_mute",
    "export_id": "export",
    "path:path": "export_file",
}
SAME_FOR_ALL = {"/docs", "/suites", "/webhook_event_types"}
OF_NO_THING = {"/costs", "/quotas", "/refusals"}
"""Numbers of the caller, and its commands, which `gateway/test_costs.py` and `gateway/test_commands.py` ask for as another
tenant.
"""


def tenant_routes() -> set[tuple[str, str]]:
    """Of every module of routes but the operator's, as they are written in those lists."""
    method_paths = set()
    for module in pkgutil.iter_modules(routes.__path__):
        router = importlib.import_module(f"{routes.__name__}.{module.name}").router
        prefix = "/fine_tuning" if router.routes[0].path.startswith("/jobs") else ""
        for route in router.routes:
            path = re.sub(
                r"\{([a-z_:]+)\}", lambda name: f"{{{PARAMETERS.get(name[1], name[1])}}}", route.path
            )
            if not path.startswith("/admin"):
                method_paths |= {(method, prefix + path) for method in route.methods}
    return method_paths


def test_every_route_of_one_thing_is_asked_for_anothers():
    of_one_thing = {(method, path) for method, path in tenant_routes() if "{" in path}
    assert of_one_thing - set(OF_A_JOB + ELSE) == set()


def test_every_list_is_asked_for_by_another():
    lists = {path for method, path in tenant_routes() if method == "GET" and "{" not in path}
    assert lists - SAME_FOR_ALL - OF_NO_THING == {path.partition("?")[0] for path in LISTS}
