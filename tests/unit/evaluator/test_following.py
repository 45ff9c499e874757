"""The service follows a child that asks for answers, and never leaves it waiting."""

import asyncio

import pytest

from services.evaluator.clients.engine import EngineFailed
from services.evaluator.handlers.answers import Following, Run
from services.evaluator.scoring.exchange import Given, given_path
from services.evaluator.scoring.reports import AnswersAsked, Loaded, Waiting
from tests.unit.evaluator.evaluations import a_version, an_artifact
from tests.waiting import PATIENCE_SECONDS

PART = "holdout"
ASKED, WAITING, LOADED = AnswersAsked(parts=(PART,)), Waiting(), Loaded(device="cpu")


@pytest.fixture
def run(tmp_path) -> Run:
    return Run("eval-1", a_version(an_artifact()), "vllm 1", tmp_path, lambda report: None)


async def given(run: Run) -> str:
    """The problem that the child is told."""
    path = given_path(run.work_dir, PART)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not path.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return Given.model_validate_json(path.read_bytes()).problem


@pytest.mark.parametrize(
    "error", [EngineFailed("it is gone"), RuntimeError("our own mistake"), OSError("full")]
)
async def test_whatever_fails_is_reported(run, error):
    async def answer(*_: object) -> None:
        raise error

    Following(run, answer).follow(ASKED)
    assert await given(run) == f"{type(error).__name__}: {error}"


async def test_one_that_waits_for_nothing_is_reported(run):
    async def answer(*_: object) -> None:
        """Writes nothing."""

    following = Following(run, answer)
    following.follow(ASKED)
    await asyncio.gather(following._task)
    following.follow(WAITING)
    assert await given(run) == "answering ended without an answer"


async def test_one_that_is_being_answered_waits(run):
    answering = asyncio.Event()

    async def answer(*_: object) -> None:
        answering.set()
        await asyncio.Event().wait()

    following = Following(run, answer)
    following.follow(ASKED)
    await answering.wait()
    following.follow(WAITING)
    assert not given_path(run.work_dir, PART).exists()
    await following.stop()
    assert following._task.cancelled()


async def test_what_an_earlier_process_was_given_is_not_asked_again(run):
    async def refuse(*_: object) -> None:
        raise EngineFailed("it is gone")

    Following(run, refuse).follow(ASKED)
    await given(run)
    again = Following(run, refuse)
    again.follow(ASKED)
    assert again._task is None
    await again.stop()


async def test_every_report_is_handed_on(tmp_path, run):
    heard = []
    following = Following(Run(run.eval_id, run.version, run.engine, tmp_path, heard.append), None)
    following.follow(LOADED)
    following.follow(WAITING)
    assert heard == [LOADED, WAITING]
