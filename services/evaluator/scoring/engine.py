"""Parts whose answers an engine of serving gives: asking for them, and trusting what comes only after a proof."""

# ruff: noqa: N803, N806 shapes are part of tensors' names
# T = tokens of the probe, V = size of the vocabulary
import time
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path

from torch import Tensor

from services.evaluator.scoring.exchange import (
    ASKED_FILE,
    Asked,
    AskedPart,
    AskedPrompt,
    Given,
    GivenSide,
    given_path,
)
from services.evaluator.scoring.generation import Generated, Prompt, stop_tokens
from services.evaluator.scoring.models import Models
from services.evaluator.scoring.order import AnyPart, Side
from services.evaluator.scoring.parts import Prepared
from services.evaluator.scoring.reports import AnswersAsked, AnswersTaken, Report, Waiting
from services.evaluator.scoring.scorer import Scorer
from shared.files import write_whole

Send = Callable[[Report], None]

NUM_PROBES = 4
MAX_SHARE = 0.5
"""How far an engine may be from the side that it is to be, as a share of how far it is from the other side.

Rounding differs between engines; what an adapter changes must be more than that to distinguish the sides.
"""
LOOK_SECONDS = 0.1
SEND_SECONDS = 30.0
"""Seconds between signs of life: a child that says nothing for long is taken to hang."""


def ask(
    models: Models, parts: Sequence[AnyPart], prepared: Mapping[str, Prepared], work_dir: Path, send: Send
) -> None:
    """Ask for answers, once the candidate has proved active: one that is not is loaded by no engine."""
    if not parts:
        return
    asked = Asked(
        probes=tuple(tuple(models.probe_ids[:length]) for length in _lengths(models)),
        stops=tuple(sorted(stop_tokens(models.scorer))),
        parts=tuple(
            AskedPart(part=part.name, sides=part.engine_sides, prompts=_prompts(prepared[part.name].prompts))
            for part in parts
        ),
    )
    write_whole(work_dir / ASKED_FILE, asked.model_dump_json())
    send(AnswersAsked(parts=tuple(part.name for part in parts)))


def await_answers(models: Models, part: AnyPart, prepared: Prepared, work_dir: Path, send: Send) -> Given:
    """Return what was given for a part; with a problem where it cannot be used. The service always answers."""
    path, sent_at = given_path(work_dir, part.name), time.monotonic()
    while not path.exists():
        time.sleep(LOOK_SECONDS)
        if time.monotonic() - sent_at > SEND_SECONDS:
            sent_at = time.monotonic()
            send(Waiting())
    given = Given.model_validate_json(path.read_bytes())
    problem = given.problem or find_fault(models, part, prepared, given)
    send(AnswersTaken(answered=part.name, engine=given.engine, problem=problem))
    return given.model_copy(update={"problem": problem})


def find_fault(models: Models, part: AnyPart, prepared: Prepared, given: Given) -> str:
    """Return why these answers are not those of the two models in memory; empty where they are."""
    if given.engine != part.engine:
        return f"answers come from {given.engine!r}, expected {part.engine!r}"
    for side in part.engine_sides:
        answered = given.sides.get(side)
        if answered is None:
            return f"answers of the {side} are missing"
        problem = _find_misfit(models.scorer, prepared.prompts, answered) or _find_other(
            models, side, answered
        )
        if problem:
            return f"{side}: {problem}"
    return ""


def texts(scorer: Scorer, given: Given, side: Side) -> list[Generated]:
    """Return the answers as texts without special tokens, as answers of our own are."""
    return [
        Generated(scorer.tokenizer.decode(list(answer.ids), skip_special_tokens=True), answer.is_cut)
        for answer in given.sides[side].answers
    ]


def _find_misfit(scorer: Scorer, prompts: Sequence[Prompt], answered: GivenSide) -> str:
    if len(answered.answers) != len(prompts):
        return f"{len(answered.answers)} answers, expected {len(prompts)}"
    for number, (prompt, answer) in enumerate(zip(prompts, answered.answers, strict=True)):
        if len(answer.ids) > prompt.max_new_tokens:
            return f"answer {number} has {len(answer.ids)} tokens, expected at most {prompt.max_new_tokens}"
        if any(not 0 <= token < scorer.vocab_size for token in answer.ids):
            return f"answer {number} has tokens outside of the vocabulary of {scorer.vocab_size}"
    return ""


def _find_other(models: Models, side: Side, answered: GivenSide) -> str:
    """Return why another model answered: it is not clearly nearer to this side than to the other. Empty: none did."""
    own_TV, other_TV = models.base_logits_TV, models.candidate_logits_TV
    if side is Side.CANDIDATE:
        own_TV, other_TV = other_TV, own_TV
    if len(answered.probes) != len(_lengths(models)) or not all(answered.probes):
        return f"{len(answered.probes)} probes were answered, expected {len(_lengths(models))}"
    own, other = (_distance(models, logits_TV, answered.probes) for logits_TV in (own_TV, other_TV))
    if own < MAX_SHARE * other and isfinite(own):
        return ""
    return (
        f"the engine's log-probabilities are {own:.3g} away from this side's and {other:.3g} from the other's,"
        f" expected less than {MAX_SHARE} of that"
    )


def _distance(models: Models, logits_TV: Tensor, probes: Sequence[Mapping[int, float]]) -> float:
    """Return the mean difference of log-probabilities over the tokens that are listed; infinite for unknown ones."""
    apart: list[float] = []
    for length, listed in zip(_lengths(models), probes, strict=True):
        expected_V = logits_TV[length - 1].log_softmax(dim=-1)
        if any(not 0 <= token < len(expected_V) for token in listed):
            return float("inf")
        apart += [abs(value - float(expected_V[token])) for token, value in listed.items()]
    return sum(apart) / len(apart)


def _lengths(models: Models) -> list[int]:
    """Return the lengths of the probe's beginnings that are asked."""
    whole = len(models.probe_ids)
    return sorted({max(1, whole * number // NUM_PROBES) for number in range(1, NUM_PROBES + 1)})


def _prompts(prompts: Sequence[Prompt]) -> tuple[AskedPrompt, ...]:
    return tuple(
        AskedPrompt(ids=tuple(prompt.ids), max_new_tokens=prompt.max_new_tokens) for prompt in prompts
    )
