"""Items and logs of evaluations, as the evaluator put them in S3."""

import json
from typing import Any

from schemas import layout
from schemas.layout import ITEMS_OF_A_PAGE, ItemGroup
from services.gateway import representations
from services.gateway.deps import page_size, parse_cursor
from shared.storage.objects import ObjectStore


async def item_page(
    objects: ObjectStore, verdict: Any, group: ItemGroup, *, after: str | None, limit: int
) -> dict[str, Any]:
    """Failing items first, numbered from 1. Raises ApiError on a bad `after` or `limit`."""
    size, skipped = page_size(limit), parse_cursor(after, "item", param="after") or 0
    page_items: list[dict[str, Any]] = []
    number = skipped // ITEMS_OF_A_PAGE
    while len(page_items) <= size:
        items = await _items(objects, verdict, group, number)
        numbered = enumerate(items, number * ITEMS_OF_A_PAGE + 1)
        page_items += [{"id": f"item-{place}", **item} for place, item in numbered if place > skipped]
        if len(items) < ITEMS_OF_A_PAGE:
            break
        number += 1
    return representations.page(page_items[:size], has_more=len(page_items) > size)


async def log_text(objects: ObjectStore, verdict: Any) -> str | None:
    """None where nothing was scored."""
    raw = await _find(objects, layout.evaluation(_measured_by(verdict), layout.EVALUATION_LOG))
    return None if raw is None else raw.decode("utf-8", "replace")


async def _items(objects: ObjectStore, verdict: Any, group: ItemGroup, page: int) -> list[dict[str, Any]]:
    raw = await _find(objects, layout.evaluation_items(_measured_by(verdict), group, page))
    return [json.loads(line) for line in (raw or b"").splitlines()]


async def _find(objects: ObjectStore, key: str) -> bytes | None:
    return await objects.get_bytes(key) if await objects.head(key) else None


def _measured_by(verdict: Any) -> str:
    """Its own id, or that of an earlier one whose numbers could not but be equal."""
    return (verdict["evidence"] or {}).get("measured_by") or str(verdict["eval_id"])
