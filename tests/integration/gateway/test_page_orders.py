"""Lists of the page by each of their orders: all rows once over all pages, those with equal values too."""

import json
import random
import re
from html import unescape

import pytest

from schemas.dataset import DatasetCounts
from tests.integration.gateway import test_page_searches
from tests.integration.gateway.sweep_rows import ADD_JOB, ADD_TRIAL
from tests.integration.gateway.test_page_searches import LISTS, List
from tests.integration.gateway.world import World

pytestmark = pytest.mark.stack

tenant, person = test_page_searches.tenant, test_page_searches.person

ROWS = 53
ORDERS = {
    "/datasets": {"created": False, "name": True, "tokens": False},
    "/deployments": {"slot": True, "changed": False},
    "/sweeps": {"created": False, "loss": True, "cost": False},
    "/webhooks": {"created": False, "name": True},
    "/models": {"created": False, "name": True},
}
"""Whether the least value comes first, by list and order."""
SET_TOKENS = "UPDATE dataset SET detail = jsonb_build_object('counts', $2::jsonb) WHERE dataset_id = $1"
SET_CHANGED = "UPDATE route SET updated_at = now() + $2 * interval '1 min' WHERE slot = $1"
SET_NAME = "UPDATE webhook_endpoint SET name = $2 WHERE endpoint_id = $1"


async def add(world: World, tenant: str, listing: List, order: str, value: int) -> str:
    """Add a row that has this value in the order, and return what its link leads to."""
    name = f"{'ROW' if value % 2 and order == 'name' else 'row'}-{value:03}"
    row = await listing.add(world, tenant, name)
    match listing.path, order:
        case "/datasets", "tokens":
            counts = DatasetCounts(
                rows=1, windows=1, tokens=value, loss_tokens=1, rejected_rows=0, exact_duplicates=0, near_duplicates=0,
                contaminated_rows=0, contaminated_by_source={}, training_file_rows=1,
            )  # fmt: skip
            await world.db.execute(SET_TOKENS, row, counts.model_dump_json())
        case "/deployments", "changed":
            await world.db.execute(SET_CHANGED, row, value)
        case "/webhooks", "name":
            await world.db.execute(SET_NAME, row, name)
        case "/sweeps", "loss" | "cost":
            trial = (row, 0, tenant, f"ftjob-{row}", json.dumps({}), "completed", float(value), None, "")
            await world.db.execute(ADD_TRIAL, *trial)
            spec = world.spec().model_dump_json()
            await world.db.execute(ADD_JOB, f"ftjob-{row}", tenant, "succeeded", spec, 1, value, None)
    return row


@pytest.mark.parametrize(
    ("listing", "order"),
    [(listing, order) for listing in LISTS for order in ORDERS[listing.path]],
    ids=lambda each: each if isinstance(each, str) else each.path[1:],
)
async def test_pages_have_each_row_once_and_in_order(world, tenant, person, listing, order):
    is_rising, is_newest = ORDERS[listing.path][order], order == "created"
    given = [number if is_newest else number // 4 for number in range(ROWS)]
    if not is_newest:
        random.Random(3).shuffle(given)
    values = {await add(world, tenant, listing, order, value): value for value in given}
    path, seen, pages = f"{listing.path}?sort={order}", [], 0
    while path:
        answer = await person.get(path)
        seen += listing.rows(answer)
        assert f'<option value="{order}" selected>' in answer.text
        following = re.search(r'href="([^"]+)" rel="next"', answer.text)
        path, pages = unescape(following[1]) if following else "", pages + 1
    assert ({*seen}, len(seen), pages) == ({*values}, ROWS, 2)
    assert [values[row] for row in seen] == sorted(given, reverse=not is_rising)


@pytest.mark.parametrize("listing", LISTS, ids=lambda each: each.path[1:])
async def test_one_that_there_is_not_is_refused(person, listing):
    for path in (listing.path, f"{listing.path}/stream"):
        answer = await person.get(path, params={"sort": "size"})
        assert answer.status_code == 400
        assert f"sort: found 'size', expected one of {', '.join(ORDERS[listing.path])}" in unescape(
            answer.text
        )
