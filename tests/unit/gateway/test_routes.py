"""The list of routes that tenants are kept apart by (`tests/integration/test_gateway.py`) leaves none out."""

import importlib
import pkgutil
import re

from services.gateway import routes
from tests.integration.test_gateway import ELSE, OF_A_JOB

PARAMETERS = {
    "job_id": "job",
    "name:path": "model",
    "slot:path": "model",
    "dataset_id": "dataset",
    "file_id": "file",
    "upload_id": "upload",
}


def routes_of_one_thing() -> set[tuple[str, str]]:
    """Of every module of routes but the operator's, as they are written above."""
    method_paths = set()
    for module in pkgutil.iter_modules(routes.__path__):
        router = importlib.import_module(f"{routes.__name__}.{module.name}").router
        prefix = "/fine_tuning" if router.routes[0].path.startswith("/jobs") else ""
        for route in router.routes:
            path = re.sub(
                r"\{([a-z_:]+)\}", lambda name: f"{{{PARAMETERS.get(name[1], name[1])}}}", route.path
            )
            if "{" in path and not path.startswith("/admin"):
                method_paths |= {(method, prefix + path) for method in route.methods}
    return method_paths


def test_every_route_of_one_thing_is_asked_for_anothers():
    assert routes_of_one_thing() - set(OF_A_JOB + ELSE) == set()
