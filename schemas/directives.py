"""What a node asks trainer_agent for to know what its attempt shall do, and what it is answered.

A body is JSON, signed with the node's key (`shared/signatures.py`). The same directives are on `agent.directives`, as
their record.
"""

from datetime import datetime, timedelta
from typing import Annotated

from pydantic import Field

from schemas.base import Value
from schemas.envelope import Origin
from schemas.object_requests import AttemptNodeRequest
from schemas.training import StartTraining, StopTraining

ROUTE = "/v1/directives"
"""Route of trainer_agent, by POST."""
MAX_BODY_BYTES = 4 * 1024
HELD_FOR = timedelta(seconds=10)
"""Time for which a request is held while there is nothing new; a client waits for longer than that."""

Name = Annotated[str, Field(max_length=128)]


class DirectivesRequest(AttemptNodeRequest):
    """What the node has already, so that it is answered once there is something else."""

    report_id: Name
    """Event id of the RunnerStarted with which this runner reported: one that began on an empty disk has another."""
    version: Name = ""
    """That of the newest answer; empty: there was none."""


class Directives(Value):
    """What the node shall do now: a state, so that an answer that is lost changes nothing."""

    version: Name
    """Another one wherever anything below but `time` is other."""
    start: StartTraining | None = None
    stop: StopTraining | None = None
    time: datetime
    """Of Postgres, at the answer."""
    origin: Origin | None = None
    """Request that the attempt belongs to; None of an attempt of an older release."""

    @property
    def directives(self) -> tuple[StartTraining | StopTraining, ...]:
        return tuple(each for each in (self.start, self.stop) if each is not None)
