"""Carry out an order: prove that the candidate is active, then score every part on the sides asked for."""

import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from services.evaluator.scoring.likelihood import Report
from services.evaluator.scoring.models import Models
from services.evaluator.scoring.order import (
    AnyPart,
    Order,
    PartScores,
    Probe,
    Scores,
    ScoringRefused,
    Side,
)
from services.evaluator.scoring.parts import Prepared, prepare, read_rows
from services.evaluator.scoring.scorer import Scorer

Say = Callable[[Mapping[str, Any]], None]
"""Sends one progress line to the service."""


def run(order: Order, work_dir: Path, say: Say) -> Scores:
    """Every number, or the failure that no second try would change."""
    torch.manual_seed(order.seed)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    try:
        return _run(order, work_dir, say)
    except ScoringRefused as error:
        return Scores(harness_version=order.harness_version, failure=error.failure)


def _run(order: Order, work_dir: Path, say: Say) -> Scores:
    rows = {part.name: read_rows(part) for part in order.parts}
    models = Models(order)
    say(
        {"event": "loaded", "device": str(models.scorer.device), "shared_tokens": models.scorer.shared_tokens}
    )
    prepared = {part.name: prepare(models.scorer, part, rows[part.name]) for part in order.parts}
    say({"event": "prepared"})
    probe: Probe | None = None
    scored: list[PartScores] = []
    for side in _sides(order):
        with models.on(side) as scorer:
            if side is Side.CANDIDATE:
                probe = models.prove_active()
                say({"event": "active", **probe.model_dump()})
            scored += [
                _score_once(scorer, part, prepared[part.name], side, work_dir, say)
                for part in order.parts
                if side in part.sides
            ]
    return Scores(harness_version=order.harness_version, probe=probe, parts=tuple(scored))


def _sides(order: Order) -> tuple[Side, Side]:
    """The candidate first, so that an inactive one costs no scoring; a full model takes its base's place."""
    if order.candidate.kind == "full":
        return Side.BASE, Side.CANDIDATE
    return Side.CANDIDATE, Side.BASE


def _score_once(
    scorer: Scorer, part: AnyPart, prepared: Prepared, side: Side, work_dir: Path, say: Say
) -> PartScores:
    """A part that an earlier process of the same order finished is read, not scored again."""
    kept = work_dir / "parts" / f"{_file_name(part, side)}.json"
    if kept.exists():
        return PartScores.model_validate_json(kept.read_bytes())
    started = time.monotonic()
    items = prepared.score(scorer, _reporter(part, side, say))
    scores = PartScores(
        part=part.name,
        side=side,
        expected=prepared.num_rows,
        items=tuple(items),
        seconds=time.monotonic() - started,
    )
    write_whole(kept, scores.model_dump_json())
    return scores


def _file_name(part: AnyPart, side: Side) -> str:
    """Names are chosen by people and are no paths."""
    return hashlib.sha256(f"{part.name} {side}".encode()).hexdigest()


def _reporter(part: AnyPart, side: Side, say: Say) -> Report:
    done = 0

    def report(just_done: int, total: int) -> None:
        nonlocal done
        done += just_done
        say({"event": "progress", "part": part.name, "side": side, "done": done, "total": total})

    return report


def write_whole(path: Path, text: str) -> None:
    """A reader finds all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
