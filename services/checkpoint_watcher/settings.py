"""Typed environment of the checkpoint watcher."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="CHECKPOINT_WATCHER_", frozen=True)

    keep_verified: Annotated[int, Field(ge=2)] = 2
    """Number of newest verified bundles of a job that retention never deletes."""
    overdue_intervals: Annotated[float, Field(gt=1)] = 3.0
    """A running attempt is overdue after this many checkpoint intervals without a bundle."""
    keep_ended: timedelta = timedelta(days=30)
    """Time from the end of a job to the deletion of all its bundles. The registry has copied what became a model."""
    try_again_after: timedelta = timedelta(minutes=1)
    """Pause of a bundle's reading or deleting after a task's tries were spent on a store that is away."""
    sweep_after: timedelta = timedelta(hours=1)
    """Time from the end of an attempt to the deletion of what it left; longer than a cut-off runner may write."""
