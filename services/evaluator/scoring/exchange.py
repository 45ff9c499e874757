"""Answers by an engine of serving: what the scoring child asks for and what it is given, as files.

asked.json              written by the child, once the candidate has proved active
given/<part>.json       written by the service for each part, whole; the child waits for it
"""

import hashlib
from pathlib import Path

from pydantic import Field

from schemas.base import Count, Value
from services.evaluator.scoring.order import Side
from shared.files import write_whole

ASKED_FILE = "asked.json"


class AskedPrompt(Value):
    ids: tuple[int, ...]
    max_new_tokens: Count


class AskedPart(Value):
    part: str
    sides: tuple[Side, ...]
    prompts: tuple[AskedPrompt, ...]


class Asked(Value):
    probes: tuple[tuple[int, ...], ...]
    """Token ids whose next token's likelihoods show which model answers."""
    stops: tuple[int, ...]
    """Tokens that end an answer."""
    parts: tuple[AskedPart, ...]


class GivenAnswer(Value):
    ids: tuple[int, ...]
    """Token ids of the answer, without the token that ended it."""
    is_cut: bool


class GivenSide(Value):
    probes: tuple[dict[int, float], ...]
    """Log-probabilities of the likeliest next tokens of each probe, by token id."""
    answers: tuple[GivenAnswer, ...]
    """Answers in the order of the prompts."""


class Given(Value):
    """All answers to a part by one engine, or why there are none."""

    problem: str = ""
    engine: str = ""
    sides: dict[Side, GivenSide] = Field(default_factory=dict)
    seconds: float = 0.0


def given_path(work_dir: Path, part: str) -> Path:
    """Return the path of a part's answers. Names of parts are chosen by people and are no paths."""
    return work_dir / "given" / f"{hashlib.sha256(part.encode()).hexdigest()}.json"


def write_given(work_dir: Path, part: str, given: Given) -> None:
    path = given_path(work_dir, part)
    path.parent.mkdir(exist_ok=True)
    write_whole(path, given.model_dump_json())
