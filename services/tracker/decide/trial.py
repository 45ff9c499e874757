"""A trial of a sweep: what is known of its job, and how far it was better or worse at each part of its run."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from schemas.sweep import Parameters, TrialState

ROUNDING = 1e-6
"""Steps by which a part of a run may be off."""


def job_id_of(sweep_id: str, number: int) -> str:
    """Return the id of the trial's job: whoever asks for the trial again asks for the same job."""
    return f"ftjob-{hashlib.sha256(f'{sweep_id}/{number}'.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Trial:
    sweep_id: str
    number: int
    job_id: str
    parameters: Parameters
    config_hash: str
    state: TrialState = TrialState.RUNNING
    is_open: bool = True
    """Whether its job has not ended; a pruned one's stops for a while."""
    num_steps: int | None = None
    """Steps of the whole job; None until it was queued."""
    losses: tuple[tuple[int, float], ...] = field(default=())
    """Step and validation loss of its bundles but the last, by step; of a step that came twice the first."""
    is_trained: bool = False
    best_valid_loss: float | None = None
    """That of the best checkpoint, where the recipe asks for it."""
    is_measured: bool = False
    """Whether its last bundle was heard of."""
    final_loss: float | None = None
    """Validation loss of the last bundle."""
    valid_loss: float | None = None
    """What the trial is compared by; None until its end is decided, and where nothing was measured."""
    duplicate_of: int | None = None
    message: str = ""

    @property
    def is_decided(self) -> bool:
        return self.state is not TrialState.RUNNING

    @property
    def progress(self) -> float:
        """How much of its run its newest measured bundle is."""
        if self.state is TrialState.COMPLETED:
            return 1.0
        return self.losses[-1][0] / self.num_steps if self.losses and self.num_steps else 0.0

    @property
    def lowest_loss(self) -> float | None:
        return min((loss for _, loss in self.losses), default=None)

    @property
    def losses_by_percent(self) -> dict[int, float]:
        """The losses by percent of the run, which trials of other batch sizes have too."""
        return {100 * step // self.num_steps: loss for step, loss in self.losses} if self.num_steps else {}

    @property
    def as_measured(self) -> "Iterator[Trial]":
        """Yield the trial as it was at each of its bundles, the earliest first."""
        return (replace(self, losses=self.losses[: count + 1]) for count in range(len(self.losses)))

    def lowest_until(self, part: float) -> float | None:
        """Return the lowest loss until that part of the run; None where nothing was measured so early."""
        if not self.num_steps:
            return None
        return min(
            (loss for step, loss in self.losses if step <= part * self.num_steps + ROUNDING), default=None
        )
