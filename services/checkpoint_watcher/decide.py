"""Pure decisions: what retention may delete, what a verdict waits for, and whether a checkpoint is overdue."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from schemas import layout
from schemas.base import BundleRef
from services.checkpoint_watcher.model import Attempt, Checkpoint, CheckpointState

RESUMABLE = frozenset({CheckpointState.WRITTEN, CheckpointState.VERIFIED})
"""An attempt may continue from it, now or once it has its verdict."""


def expirable(
    checkpoints: Sequence[Checkpoint],
    attempt: Attempt | None,
    *,
    keep: int,
    used: Collection[tuple[int, int]] = (),
) -> list[Checkpoint]:
    """Return the verified bundles that retention may delete: older than the `keep` newest verified ones, not named by
    the open attempt, and not `used` by a job that starts from them; nor the best one of a bundle that stays or may be
    verified yet.

    While the job has no bundle newer than a corrupt one, nothing older goes: `keep` counts only verified.
    """
    verified = sorted(
        (each for each in checkpoints if each.state is CheckpointState.VERIFIED),
        key=lambda each: each.age,
        reverse=True,
    )
    pinned = attempt.resume if attempt is not None and attempt.is_open else None
    old = [each for each in verified[keep:] if each.age != pinned and each.age not in used]
    best = {each.named_best for each in checkpoints if each.state in RESUMABLE and each not in old}
    return [each for each in old if each.bundle not in best]


def waits_for_best(checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]) -> bool:
    """Return whether the best checkpoint that it names has no verdict yet."""
    return _state_of_best(checkpoint, checkpoints) is CheckpointState.WRITTEN


def waiting_for(bundle: BundleRef, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints whose verdict waited for that of this one, their best."""
    return [
        each for each in checkpoints if each.named_best == bundle and each.state is CheckpointState.WRITTEN
    ]


def problem_of_best(checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]) -> str:
    """Return why nobody can resume from a whole bundle, or an empty text: a run that ends must have its best one."""
    best, state = checkpoint.named_best, _state_of_best(checkpoint, checkpoints)
    if best is None or state is CheckpointState.VERIFIED:
        return ""
    named = f"step {best.step} of attempt {best.attempt}"
    return f"the best checkpoint that it names, {named}, is {state or 'not there'}; expected verified"


def _state_of_best(checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]) -> CheckpointState | None:
    """Return the state of its best checkpoint; None where it names no other, or one that is unknown or deleted."""
    best = checkpoint.named_best
    return next((each.state for each in checkpoints if best is not None and each.bundle == best), None)


def abandoned(keys: Sequence[str]) -> list[str]:
    """Return the keys of bundles without a manifest, which nobody can ever name, among all keys of a closed attempt.

    They are what a killed runner had uploaded, or what a deletion that broke off had left.
    """
    complete = {key.removesuffix(layout.MANIFEST) for key in keys if key.endswith(f"/{layout.MANIFEST}")}
    return [key for key in keys if not key.startswith(tuple(complete))]


def is_overdue(attempt: Attempt, *, now: datetime, intervals: float) -> bool:
    """Return whether an open, started attempt has written nothing for so many intervals."""
    since = attempt.last_written_at or attempt.started_at
    if not attempt.is_open or since is None:
        return False
    return now - since >= timedelta(seconds=attempt.interval_seconds * intervals)


def next_look(attempt: Attempt, *, now: datetime, intervals: float) -> datetime:
    """Return when the attempt would be overdue if it wrote nothing from here on."""
    since = attempt.last_written_at or attempt.started_at or now
    due = since + timedelta(seconds=attempt.interval_seconds * intervals)
    return due if due > now else now + timedelta(seconds=attempt.interval_seconds * intervals)
