"""Which engine gives the answers of an evaluation."""

from collections.abc import Sequence
from typing import Literal

from schemas.model import ModelRegistered
from services.evaluator.model import Replica

AnswersBy = Literal["auto", "replica", "self"]


def choose_engine(answers_by: AnswersBy, version: ModelRegistered, ready: Sequence[Replica]) -> str:
    """Return the engine to ask first; empty where the scoring child answers itself.

    ready: the replicas of the version's base model. On a CPU the scoring child is the faster one (docs/gate.md). No
    replica loads a full model beside its base.
    """
    if answers_by == "self" or version.kind != "adapter":
        return ""
    fit = [each for each in ready if each.engine and (answers_by == "replica" or each.device == "cuda")]
    return min((each.engine for each in fit), default="")
