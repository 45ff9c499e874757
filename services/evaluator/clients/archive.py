"""What evaluations leave in S3: results and items of each, and the base model's items that later ones reuse."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from schemas import layout
from services.evaluator.decide.items import ShownItem
from services.evaluator.gates.judge import Pair
from services.evaluator.model import Baseline, GateResult
from services.evaluator.scoring.order import PartScores
from shared.errors import Conflict
from shared.storage.objects import ObjectStore

RESULTS = "results.json"
ITEMS = "items.jsonl"
BASELINES = "baselines"
MAX_BASELINE_BYTES = 512 * 1024 * 1024


class Archive:
    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def find_result(self, eval_id: str) -> GateResult | None:
        """Return the result that this evaluation stored before its process died; None if it did not get that far."""
        key = layout.evaluation(eval_id, RESULTS)
        if await self._objects.head(key) is None:
            return None
        return GateResult.model_validate_json(await self._objects.get_bytes(key))

    async def put_result(self, result: GateResult, items: Sequence[Mapping[str, Any]]) -> None:
        """Store the items, then the results: the evaluation has results once the second file is there."""
        if items:
            lines = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
            await self._put_again(layout.evaluation(result.eval_id, ITEMS), lines.encode())
        key = layout.evaluation(result.eval_id, RESULTS)
        await self._objects.put_bytes(key, result.model_dump_json(indent=1).encode())

    async def put_shown(self, eval_id: str, group: layout.ItemGroup, items: Sequence[ShownItem]) -> None:
        """Store pages of items for people, before the results."""
        for page, begin in enumerate(range(0, len(items), layout.ITEMS_OF_A_PAGE)):
            lines = "".join(
                f"{item.model_dump_json()}\n" for item in items[begin : begin + layout.ITEMS_OF_A_PAGE]
            )
            await self._put_again(layout.evaluation_items(eval_id, group, page), lines.encode())

    async def put_log(self, eval_id: str, log: bytes) -> None:
        """Store what the scoring process of the newest try wrote."""
        await self._put_again(layout.evaluation(eval_id, layout.EVALUATION_LOG), log)

    async def put_baseline(self, scored: PartScores) -> tuple[str, str]:
        """Store scores of the base model. Return key and sha256; the key holds the digest of the content."""
        raw = scored.model_dump_json().encode()
        key = layout.evaluation(BASELINES, f"{hashlib.sha256(raw).hexdigest()}.json")
        return key, await self._objects.put_bytes(key, raw)

    async def get_baseline(self, baseline: Baseline) -> PartScores:
        raw = await self._objects.get_bytes(
            baseline.key, sha256=baseline.sha256, limit_bytes=MAX_BASELINE_BYTES
        )
        return PartScores.model_validate_json(raw)

    async def _put_again(self, key: str, data: bytes) -> None:
        """Store a file in place of another one, which an earlier try without results may have left."""
        try:
            await self._objects.put_bytes(key, data)
        except Conflict:
            await self._objects.delete([key])
            await self._objects.put_bytes(key, data)


def _by(scored: PartScores) -> dict[str, str]:
    return {"engine": scored.engine} if scored.engine else {}


def item_lines(scored: Iterable[PartScores], pairs: Iterable[Pair]) -> list[dict[str, Any]]:
    """Return one line per item and side, then one per judged pair."""
    lines: list[dict[str, Any]] = [
        {"part": part.part, "side": part.side, **_by(part), **item.model_dump(exclude_none=True)}
        for part in scored
        for item in part.items
    ]
    lines += [
        {"part": "judge", "key": pair.key, "shown_first": pair.shown_first, "shown_second": pair.shown_second}
        for pair in pairs
    ]
    return lines
