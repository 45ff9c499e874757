"""A browser visits every page of the gateway; what is beside the pages is named with the reason."""

import typing

import pytest
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute

from services.gateway.page import ROUTERS
from services.gateway.page.job import TABS
from tests.integration.gateway.visited import NOT_VISITED, PAGES

NO_ROUTE = "/nowhere"
"""Its page says so."""


def routes() -> list[APIRoute]:
    return [
        route
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and "GET" in route.methods
    ]


def is_stream(route: APIRoute) -> bool:
    returned = typing.get_type_hints(route.endpoint)["return"]
    return route.path.endswith("/stream") and returned is StreamingResponse


def route_of(address: str) -> str | None:
    """The path of the first route that takes the address, as the gateway chooses it."""
    path = address.partition("?")[0]
    return next((route.path for route in routes() if route.path_regex.match(path)), None)


def visited() -> set[str | None]:
    return {route_of(address) for address in PAGES.values() if address != NO_ROUTE}


@pytest.mark.parametrize("path", [route.path for route in routes() if not is_stream(route)])
def test_a_page_is_visited_or_there_is_a_reason(path: str):
    assert (path in visited()) != (path in NOT_VISITED), (
        f"{path}: expected an address in PAGES, or a reason in NOT_VISITED, of tests/integration/gateway/visited.py"
    )


def test_what_is_visited_or_has_a_reason_is_there():
    paths = {route.path for route in routes()}
    assert visited() <= paths
    assert NOT_VISITED.keys() <= paths
    assert route_of(NO_ROUTE) is None


def test_every_tab_of_a_job_is_visited():
    assert {f"/jobs/{{running}}/{tab}" for tab in TABS if tab != "curves"} <= {*PAGES.values()}
