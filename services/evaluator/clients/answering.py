"""Answers by an engine of serving to what the scoring child asked: whole parts, or none of a part."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from services.evaluator.clients.child import OnReport
from services.evaluator.clients.engine import AnswerEngine, EngineFailed
from services.evaluator.scoring.exchange import (
    Asked,
    AskedPart,
    Given,
    GivenAnswer,
    GivenSide,
    given_path,
    write_given,
)
from services.evaluator.scoring.order import Side
from services.evaluator.scoring.reports import PartProgressed
from shared.log import get_logger

log = get_logger(__name__)


async def answer_parts(
    engine: AnswerEngine, asked: Asked, work_dir: Path, on_report: OnReport, *, concurrency: int
) -> None:
    """Write what each part is given. After the engine's first failure it is asked nothing more.

    Parts that an earlier process of the service had answers to keep them.
    """
    problem = ""
    for part in asked.parts:
        if is_given([part.part], work_dir):
            continue
        if not problem:
            given = await _answer_part(engine, asked, part, on_report, concurrency=concurrency)
            problem = given.problem
        else:
            given = Given(problem=problem)
        await asyncio.to_thread(write_given, work_dir, part.part, given)


def is_given(parts: Sequence[str], work_dir: Path) -> bool:
    """Return whether an earlier process of the service has written what each of these parts is given."""
    return all(given_path(work_dir, part).exists() for part in parts)


def refuse_parts(parts: Sequence[str], work_dir: Path, problem: str) -> None:
    """Write that no engine answers, for those of these parts that have no answers yet."""
    for part in parts:
        if not is_given([part], work_dir):
            write_given(work_dir, part, Given(problem=problem))


async def _answer_part(
    engine: AnswerEngine, asked: Asked, part: AskedPart, on_report: OnReport, *, concurrency: int
) -> Given:
    began = time.monotonic()
    try:
        sides = await _answer_sides(engine, asked, part, on_report, concurrency=concurrency)
    except EngineFailed as error:
        log.warning("engine does not answer", part=part.part, error=str(error))
        return Given(problem=str(error))
    seconds = (time.monotonic() - began) / len(sides)
    return Given(engine=engine.name, sides=sides, seconds=seconds)


async def _answer_sides(
    engine: AnswerEngine, asked: Asked, part: AskedPart, on_report: OnReport, *, concurrency: int
) -> dict[Side, GivenSide]:
    """Answer both sides side by side. Raises EngineFailed, and then nothing of the part is under way any more."""
    limit = asyncio.Semaphore(concurrency)
    done = dict.fromkeys(part.sides, 0)

    async def answer(side: Side, number: int) -> GivenAnswer:
        async with limit:
            answered = await engine.answer(side, part.prompts[number], asked.stops)
        done[side] += 1
        on_report(PartProgressed(part=part.part, side=side, done=done[side], total=len(part.prompts)))
        return answered

    try:
        async with asyncio.TaskGroup() as group:
            tasks = {
                side: [group.create_task(answer(side, number)) for number in range(len(part.prompts))]
                for side in part.sides
            }
            probes = {
                side: [group.create_task(engine.probe(side, ids)) for ids in asked.probes]
                for side in part.sides
            }
    except ExceptionGroup as failures:
        failed, others = failures.split(EngineFailed)
        if others is not None or failed is None:
            raise
        raise _first(failed) from failures
    return {
        side: GivenSide(
            probes=tuple(task.result() for task in probes[side]),
            answers=tuple(task.result() for task in tasks[side]),
        )
        for side in part.sides
    }


def _first(failures: BaseExceptionGroup[EngineFailed]) -> EngineFailed:
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, EngineFailed)
    return error
