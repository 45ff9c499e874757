"""The scheduler's environment: `SCHEDULER_…`."""

from datetime import timedelta

from pydantic_settings import SettingsConfigDict

from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="SCHEDULER_", frozen=True)

    start_within: timedelta = timedelta(minutes=5)
    """How long an attempt may take until its whole gang is there."""
    look_every: timedelta = timedelta(seconds=1)
    """How often back-offs that ended are looked for."""
    look_anyway_every: timedelta = timedelta(seconds=5)
    """How often the whole queue is looked at without news, for estimates that change as time passes."""
    grow_after: timedelta = timedelta(minutes=5)
    """How long an elastic job's attempt must have run, and could have had more nodes that nobody waits for, before it
    is stopped to continue on them; one that is expected to end within as long is left alone."""
    announce_every: timedelta = timedelta(seconds=30)
    """How often the queue positions of those who wait are emitted, where they changed."""
