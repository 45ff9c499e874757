"""What the scoring child reports while it works, to people and to the service that follows it."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from schemas.base import Count, Value
from services.evaluator.scoring.order import FailureCode, Probe, Side


class Loaded(Value):
    event: Literal["loaded"] = "loaded"
    device: str
    shared_tokens: Count = 0


class RowsPrepared(Value):
    event: Literal["prepared"] = "prepared"


class Active(Probe):
    event: Literal["active"] = "active"


class PartProgressed(Value):
    """Some items of a part are scored, on all its sides where `side` is None."""

    event: Literal["progress"] = "progress"
    part: str
    side: Side | None = None
    done: Count
    total: Count


class AnswersAsked(Value):
    """The child needs answers of these parts by an engine of serving, and waits for them."""

    event: Literal["asked"] = "asked"
    parts: tuple[str, ...]


class Waiting(Value):
    """The child still waits for answers: it does not hang."""

    event: Literal["waiting"] = "waiting"


class AnswersTaken(Value):
    event: Literal["given"] = "given"
    answered: str
    """Name of the part that was answered."""
    engine: str
    problem: str
    """Reason why the answers are of no use; empty where they are of use."""


class Done(Value):
    event: Literal["done"] = "done"
    failure: FailureCode | None


Report = Annotated[
    Loaded | RowsPrepared | Active | PartProgressed | AnswersAsked | Waiting | AnswersTaken | Done,
    Field(discriminator="event"),
]
REPORT: TypeAdapter[Report] = TypeAdapter(Report)
