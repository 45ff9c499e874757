"""Pure decisions: what retention may delete, and whether a checkpoint is overdue."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from schemas import layout
from services.checkpoint_watcher.model import Attempt, Checkpoint, CheckpointState


def expirable(
    checkpoints: Sequence[Checkpoint],
    attempt: Attempt | None,
    *,
    keep: int,
    used: Collection[tuple[int, int]] = (),
) -> list[Checkpoint]:
    """Verified bundles older than the `keep` newest verified ones, not named by the open attempt, and not `used` by a
    job that starts from them.

    While the job has no bundle newer than a corrupt one, nothing older goes: `keep` counts only verified.
    """
    verified = sorted(
        (each for each in checkpoints if each.state is CheckpointState.VERIFIED),
        key=lambda each: each.age,
        reverse=True,
    )
    pinned = attempt.resume if attempt is not None and attempt.is_open else None
    return [each for each in verified[keep:] if each.age != pinned and each.age not in used]


def abandoned(keys: Sequence[str]) -> list[str]:
    """Of all keys of a closed attempt those of bundles without a manifest, which nobody can ever name.

    They are what a killed runner had uploaded, or what a deletion that broke off had left.
    """
    complete = {key.removesuffix(layout.MANIFEST) for key in keys if key.endswith(f"/{layout.MANIFEST}")}
    return [key for key in keys if not key.startswith(tuple(complete))]


def is_overdue(attempt: Attempt, *, now: datetime, intervals: float) -> bool:
    """Whether an open, started attempt has written nothing for so many intervals."""
    since = attempt.last_written_at or attempt.started_at
    if not attempt.is_open or since is None:
        return False
    return now - since >= timedelta(seconds=attempt.interval_seconds * intervals)


def next_look(attempt: Attempt, *, now: datetime, intervals: float) -> datetime:
    """When the attempt would be overdue if it wrote nothing from here on."""
    since = attempt.last_written_at or attempt.started_at or now
    due = since + timedelta(seconds=attempt.interval_seconds * intervals)
    return due if due > now else now + timedelta(seconds=attempt.interval_seconds * intervals)
