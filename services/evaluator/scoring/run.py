"""Carry out an order: prove that the candidate is active, then score every part on the sides asked for."""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from services.evaluator.scoring.engine import Send, ask, await_answers, texts
from services.evaluator.scoring.exchange import Given
from services.evaluator.scoring.likelihood import Report
from services.evaluator.scoring.models import Models
from services.evaluator.scoring.order import (
    AnyPart,
    PartScores,
    Probe,
    Scores,
    ScoringRefused,
    Side,
    WorkOrder,
)
from services.evaluator.scoring.parts import Prepared, prepare, read_rows
from services.evaluator.scoring.reports import Active, Loaded, PartProgressed, RowsPrepared
from services.evaluator.scoring.scorer import Scorer
from shared.files import write_whole


def run(order: WorkOrder, work_dir: Path, send: Send) -> Scores:
    """Return every number, or the failure that no second try would change."""
    work_dir.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(order.seed)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    try:
        return _run(order, work_dir, send)
    except ScoringRefused as error:
        return Scores(harness_version=order.harness_version, failure=error.failure)


def _run(order: WorkOrder, work_dir: Path, send: Send) -> Scores:
    rows = {part.name: read_rows(part) for part in order.parts}
    models = Models(order)
    send(Loaded(device=str(models.scorer.device), shared_tokens=models.scorer.shared_tokens))
    prepared = {part.name: prepare(models.scorer, part, rows[part.name]) for part in order.parts}
    send(RowsPrepared())
    asked_of_engine = [part for part in order.parts if part.engine]
    probe: Probe | None = None
    scored: list[PartScores] = []
    for side in _sides(order):
        with models.on(side) as scorer:
            if side is Side.CANDIDATE:
                probe = models.prove_active()
                send(Active(**probe.model_dump()))
                ask(models, asked_of_engine, prepared, work_dir, send)
            scored += [
                _score_once(scorer, part, prepared[part.name], side, work_dir, send)
                for part in order.parts
                if not part.engine and side in part.sides
            ]
    scored += _score_given(models, asked_of_engine, prepared, work_dir, send)
    return Scores(harness_version=order.harness_version, probe=probe, parts=tuple(scored))


def _sides(order: WorkOrder) -> tuple[Side, Side]:
    """Return the candidate first: an inactive one costs no scoring. A full one replaces its base, so it is last."""
    if order.candidate.kind == "full":
        return Side.BASE, Side.CANDIDATE
    return Side.CANDIDATE, Side.BASE


def _score_given(
    models: Models, parts: Sequence[AnyPart], prepared: Mapping[str, Prepared], work_dir: Path, send: Send
) -> Iterator[PartScores]:
    """Yield the scores of parts whose answers an engine was asked for: both sides by it, or both by ourselves."""
    for part in parts:
        given = await_answers(models, part, prepared[part.name], work_dir, send)
        for side in part.sides if given.problem else part.engine_sides:
            with models.on(side) as scorer:
                if given.problem:
                    own = _score_once(scorer, part, prepared[part.name], side, work_dir, send)
                    yield own.model_copy(update={"engine_problem": given.problem})
                else:
                    yield _score(scorer, part, prepared[part.name], side, send, given)


def _score_once(
    scorer: Scorer, part: AnyPart, prepared: Prepared, side: Side, work_dir: Path, send: Send
) -> PartScores:
    """Score a part. One that an earlier process of the same order finished is read, not scored again."""
    kept = work_dir / "parts" / f"{_file_name(part, side)}.json"
    if kept.exists():
        return PartScores.model_validate_json(kept.read_bytes())
    scores = _score(scorer, part, prepared, side, send)
    kept.parent.mkdir(exist_ok=True)
    write_whole(kept, scores.model_dump_json())
    return scores


def _score(
    scorer: Scorer, part: AnyPart, prepared: Prepared, side: Side, send: Send, given: Given | None = None
) -> PartScores:
    started = time.monotonic()
    answers = None if given is None else texts(scorer, given, side)
    items = prepared.score(scorer, _reporter(part, side, send), answers)
    return PartScores(
        part=part.name,
        side=side,
        expected=prepared.num_rows,
        items=tuple(items),
        seconds=time.monotonic() - started + (given.seconds if given else 0.0),
        engine=given.engine if given else "",
    )


def _file_name(part: AnyPart, side: Side) -> str:
    """Return a name of hexadecimal digits: names of parts are chosen by people and are no paths."""
    return hashlib.sha256(f"{part.name} {side}".encode()).hexdigest()


def _reporter(part: AnyPart, side: Side, send: Send) -> Report:
    done = 0

    def report(just_done: int, total: int) -> None:
        nonlocal done
        done += just_done
        send(PartProgressed(part=part.name, side=side, done=done, total=total))

    return report
