"""What an evaluation's node may read and write, and what is believed of what it reports and gives back. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isfinite

from schemas import layout
from schemas.object_requests import ObjectRequest, Operation
from services.evaluator.model import ScoringNode
from services.evaluator.protocol import MAX_OUTCOME_BYTES, Outcome
from services.evaluator.scoring.order import Limits, PartScores, Scores, WorkOrder
from services.evaluator.scoring.reports import PartProgressed, Report
from shared.device_leases.lease import HeldLease, LeaseState
from shared.nodes.access import why_not_read

MAX_ANSWER_CHARACTERS = 64
"""Most characters of a token, on average over an answer: those of one are hardly more than ten."""

SUBJECT = "scoring-"

Keys = Mapping[str, Sequence[str]]
"""Keys of a part's rows, by the part's name."""


def subject_of(eval_id: str) -> str:
    """Return what the devices of an evaluation are leased for."""
    return f"{SUBJECT}{eval_id}"


def eval_id_of(subject: str) -> str:
    return subject.removeprefix(SUBJECT)


def why_lost(lease: HeldLease | None, *, now: datetime) -> str:
    """Return why what was leased is an evaluation's no longer; empty where it is."""
    if lease is None:
        return "its lease was given back"
    if lease.state is not LeaseState.HELD:
        return lease.reason or f"its lease is {lease.state}"
    return "its lease was not confirmed in time" if lease.is_awaited(now) else ""


def why_not_allowed(asked: ObjectRequest, node: ScoringNode | None, lease_id: str) -> str:
    """Return why the node may not do this; empty where it may: read what its order names, write its outcome once."""
    outcome = "" if node is None else layout.evaluation_outcome(node.eval_id, lease_id)
    if node is not None and asked.key == outcome:
        return _why_not_outcome(asked)
    return why_not_read(asked, readable(node))


def _why_not_outcome(asked: ObjectRequest) -> str:
    size = asked.size_bytes or 0
    is_whole = asked.operation is Operation.HEAD or (
        asked.operation is Operation.PUT and asked.sha256 is not None and size <= MAX_OUTCOME_BYTES
    )
    if is_whole:
        return ""
    expected = f"one whole object of at most {MAX_OUTCOME_BYTES} bytes"
    return f"{asked.operation} {asked.key}: {size} bytes, expected {expected}"


def readable(node: ScoringNode | None) -> frozenset[str]:
    """Return the beginnings of the keys that the node may read."""
    if node is None:
        return frozenset()
    order = node.work.order
    folders = {f"{order.base_path}/", f"{order.candidate.path}/"}
    return frozenset(folders | {layout.blob(file.sha256) for file in node.work.files})


def why_unfit(order: WorkOrder, own: Limits) -> str:
    """Return why a node's scores would be of another harness; empty if not. `own`: the limits with its own device."""
    expected, version = order.harness_version, own.harness_version
    return "" if version == expected else f"its harness is {version!r}, expected {expected!r}"


def news(order: WorkOrder, before: Sequence[Report], now: Sequence[Report]) -> tuple[Report, ...]:
    """Return what is handed on of a node's reports: what is new, and of no part that the order has not."""
    parts = {part.name for part in order.parts}
    return tuple(
        each
        for each in now
        if each not in before and (not isinstance(each, PartProgressed) or each.part in parts)
    )


def why_not_believed(order: WorkOrder, outcome: Outcome, keys: Keys) -> str:
    """Return why an outcome is not one of this order; empty where it may be. `keys`: of the files that it names.

    Its numbers are the node's word. What cannot be is refused: another order, harness, part, row or side, a missing
    row, and numbers that no scoring gives.
    """
    if outcome.order_sha256 != order.sha256:
        return f"they are of order {outcome.order_sha256}, expected {order.sha256}"
    scores = outcome.scores
    if scores is None:
        return "" if outcome.crash else "there are neither scores nor a reason"
    if scores.harness_version != order.harness_version:
        return f"their harness is {scores.harness_version!r}, expected {order.harness_version!r}"
    if scores.failure is not None:
        return "scores beside a failure" if scores.parts else ""
    return _why_not_whole(order, scores) or next(
        (problem for part in scores.parts if (problem := _why_not_part(order, part, keys))), ""
    )


def _why_not_whole(order: WorkOrder, scores: Scores) -> str:
    expected = sorted((part.name, side.value) for part in order.parts for side in part.sides)
    parts = sorted((part.part, part.side.value) for part in scores.parts)
    if parts != expected:
        return f"parts are {parts}, expected {expected}"
    if scores.probe is None:
        return "there is no probe of the candidate"
    return "" if isfinite(scores.probe.max_logit_change) else "the probe's change of a logit is not finite"


def _why_not_part(order: WorkOrder, scored: PartScores, keys: Keys) -> str:
    where, expected = f"{scored.part} {scored.side}", keys[scored.part]
    if scored.engine or scored.engine_problem:
        return f"{where}: answered by an engine, expected the scoring child"
    if scored.expected != len(expected) or [item.key for item in scored.items] != list(expected):
        return (
            f"{where}: {len(scored.items)} items that are not the {len(expected)} rows of its file, in order"
        )
    longest = MAX_ANSWER_CHARACTERS * max(order.max_answer_tokens, order.max_new_tokens)
    for item in scored.items:
        if odd := [name for name, value in item.numbers.items() if not _can_be(name, value, item.numbers)]:
            return f"{where}, {item.key}: {odd[0]} is {item.numbers[odd[0]]}"
        if item.answer is not None and len(item.answer) > longest:
            return (
                f"{where}, {item.key}: an answer of {len(item.answer)} characters, expected at most {longest}"
            )
    return ""


def _can_be(name: str, value: float, numbers: Mapping[str, float]) -> bool:
    """Return whether scoring gives such a number; nats may be infinite, and by rounding a little below zero."""
    least = -1.0 if name == "nats" else 0.0
    most = numbers.get("tokens", 1.0) if name == "hits" else float("inf")
    return least <= value <= most
