"""Items and logs of evaluations, as the evaluator put them in S3."""

import json
from collections.abc import Iterator

from schemas import layout
from schemas.layout import ITEMS_OF_A_PAGE, ItemGroup
from services.gateway import representations
from services.gateway.deps import page_size, parse_cursor
from services.gateway.model import Evaluation
from services.gateway.responses import EvaluationItem, Page
from shared.storage.objects import ObjectStore


async def item_page(
    objects: ObjectStore, verdict: Evaluation, group: ItemGroup, *, after: str | None, limit: int
) -> Page[EvaluationItem]:
    """Failing items first, numbered from 1. Raises ApiError on a bad `after` or `limit`."""
    size, skipped = page_size(limit), parse_cursor(after, "item", param="after") or 0
    page_items: list[EvaluationItem] = []
    part = skipped // ITEMS_OF_A_PAGE
    while len(page_items) <= size:
        raw = await _find(objects, layout.evaluation_items(verdict.measured_by, group, part)) or b""
        items = list(_numbered(raw, first=part * ITEMS_OF_A_PAGE + 1))
        page_items += [item for number, item in items if number > skipped]
        if len(items) < ITEMS_OF_A_PAGE:
            break
        part += 1
    return representations.page(page_items, size=size)


async def log_text(objects: ObjectStore, verdict: Evaluation) -> str | None:
    """Return the log of the scoring process; None where nothing was scored."""
    raw = await _find(objects, layout.evaluation(verdict.measured_by, layout.EVALUATION_LOG))
    return None if raw is None else raw.decode("utf-8", "replace")


def _numbered(raw: bytes, *, first: int) -> Iterator[tuple[int, EvaluationItem]]:
    for number, line in enumerate(raw.splitlines(), first):
        yield number, EvaluationItem.model_validate({"id": f"item-{number}", **json.loads(line)})


async def _find(objects: ObjectStore, key: str) -> bytes | None:
    return await objects.get_bytes(key) if await objects.head(key) else None
