"""Parts by an engine of serving: whole or not at all, and what a replica that fails leaves."""

import threading
import time

import httpx
import pytest

from services.evaluator.clients.answering import answer_parts, refuse_parts
from services.evaluator.clients.engine import EngineFailed, VllmEngine
from services.evaluator.scoring.exchange import Asked, AskedPart, AskedPrompt, Given, given_path
from services.evaluator.scoring.order import Side
from tests.answer_engines import STEPS, AnswerEngineSuite, Endpoint, Replica

BOTH = (Side.BASE, Side.CANDIDATE)
NAMES = dict(zip(BOTH, STEPS, strict=True))


@pytest.fixture
def replica() -> Replica:
    return Replica()


@pytest.fixture
def endpoint(replica):
    with replica.serving() as url:
        yield Endpoint(url, replica.key, NAMES, (3, 5, 8), replica.context_tokens)


class TestReplicaByARule(AnswerEngineSuite):
    pass


def asked(*names: str, sides=BOTH, prompts=6) -> Asked:
    part = {"sides": sides, "prompts": tuple(a_prompt(number) for number in range(prompts))}
    return Asked(
        probes=((1,), (1, 2)), stops=(50,), parts=tuple(AskedPart(part=name, **part) for name in names)
    )


def a_prompt(number: int) -> AskedPrompt:
    return AskedPrompt(ids=(number, 40 + number), max_new_tokens=8)


@pytest.fixture
def answer(endpoint, tmp_path):
    async def run(asked: Asked, *, concurrency: int = 4, engine=None) -> dict[str, Given]:
        reported = []
        async with httpx.AsyncClient() as http:
            engine = engine or endpoint.engine(http)
            await answer_parts(engine, asked, tmp_path, reported.append, concurrency=concurrency)
        run.reported = reported
        return given_to(asked, tmp_path)

    return run


def given_to(asked: Asked, work_dir) -> dict[str, Given]:
    paths = {part.part: given_path(work_dir, part.part) for part in asked.parts}
    return {part: Given.model_validate_json(path.read_bytes()) for part, path in paths.items()}


async def test_every_prompt_of_every_side_is_answered_in_its_order(answer):
    given = (await answer(asked("a", "b")))["b"]
    assert (given.problem, given.engine, set(given.sides)) == ("", "vllm 1", set(BOTH))
    base, candidate = given.sides[Side.BASE], given.sides[Side.CANDIDATE]
    assert [answer.ids[:2] for answer in base.answers] == [(41 + n, 42 + n) for n in range(6)]
    assert [answer.ids[:2] for answer in candidate.answers] == [(42 + n, 44 + n) for n in range(6)]
    assert [answer.is_cut for answer in base.answers] == [True, True, False, False, False, False]
    assert len(base.probes) == len(candidate.probes) == 2


async def test_one_side_alone_is_asked_where_the_other_is_known(answer, replica):
    given = (await answer(asked("a", sides=(Side.CANDIDATE,))))["a"]
    assert set(given.sides) == {Side.CANDIDATE}
    assert {body["model"] for body in replica.bodies} == {NAMES[Side.CANDIDATE]}


async def test_no_sampling_of_the_models_own_settings_takes_part(answer, replica):
    await answer(asked("a"))
    neutral = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    assert all(neutral.items() <= body.items() and body["ignore_eos"] for body in replica.bodies)


async def test_progress_is_said_of_each_answer(answer):
    await answer(asked("a", prompts=3))
    for side in BOTH:
        done = [report.done for report in answer.reported if report.side == side]
        assert done == [1, 2, 3]
    assert {(report.event, report.part, report.total) for report in answer.reported} == {("progress", "a", 3)}


async def test_as_many_requests_are_under_way_as_allowed(answer, replica):
    """A fourth would come while three wait for each other."""
    replica.barrier = threading.Barrier(3, action=lambda: time.sleep(0.05))
    await answer(
        asked("a", prompts=12, sides=(Side.CANDIDATE,)).model_copy(update={"probes": ()}), concurrency=3
    )
    assert replica.most_under_way == 3


@pytest.mark.parametrize("answers_before", [0, 5])
async def test_a_replica_that_dies_leaves_no_answer_of_the_part(answer, replica, answers_before):
    replica.answers_left = answers_before
    given = await answer(asked("a", "b"))
    assert [part.sides for part in given.values()] == [{}, {}]
    assert all(
        "RemoteProtocolError" in part.problem or "ReadError" in part.problem for part in given.values()
    )


async def test_after_a_failure_no_other_part_is_asked(answer, replica):
    replica.answers_left = 0
    first, second = asked("a", "b").parts
    other = second.model_copy(update={"prompts": (AskedPrompt(ids=(7, 7, 7), max_new_tokens=8),)})
    given = await answer(asked("a", "b").model_copy(update={"parts": (first, other)}))
    assert given["b"].problem == given["a"].problem
    assert [7, 7, 7] not in [body["prompt"] for body in replica.bodies]


async def test_parts_answered_before_the_failure_stay_answered(answer, replica):
    replica.answers_left = 16
    given = await answer(asked("a", "b"))
    assert [bool(part.problem) for part in given.values()] == [False, True]


async def test_what_was_given_to_an_earlier_try_stays(answer, replica, tmp_path):
    refuse_parts(["a"], tmp_path, "no replica is ready")
    given = await answer(asked("a", "b"))
    assert [part.problem for part in given.values()] == ["no replica is ready", ""]
    refuse_parts(["a", "b"], tmp_path, "another")
    assert given_to(asked("a", "b"), tmp_path) == given


ODD_ANSWERS = {
    "no JSON": "<html>",
    "no choice": {"choices": []},
    "two choices": {"choices": [{}, {}]},
    "a list": [1],
    "no token ids": {"choices": [{"text": "hello", "finish_reason": "length"}]},
    "token ids that are texts": {"choices": [{"token_ids": ["5"], "finish_reason": "length"}]},
    "an end of its own": {"choices": [{"token_ids": [7], "finish_reason": "stop"}]},
    "an end for no reason": {"choices": [{"token_ids": [7], "finish_reason": None}]},
    "nothing before the end": {"choices": [{"token_ids": [], "finish_reason": "stop"}]},
    "an end by repetition": {"choices": [{"token_ids": [7], "finish_reason": "repetition"}]},
}


@pytest.mark.parametrize("odd", ODD_ANSWERS.values(), ids=list(ODD_ANSWERS))
async def test_an_answer_of_another_shape_is_none(odd):
    with pytest.raises(EngineFailed):
        await _answering_with(odd).answer(Side.BASE, a_prompt(1), (50,))


@pytest.mark.parametrize(
    "listed", [{}, {"token_id:1": None}, {"one": -1.0}, {"token_id:1": float("nan")}, [1], None]
)
async def test_a_probe_without_numbers_is_none(listed):
    engine = _answering_with({"choices": [{"logprobs": {"top_logprobs": [listed]}}]})
    with pytest.raises(EngineFailed, match="likelihoods"):
        await engine.probe(Side.BASE, (1,))


def _answering_with(body: object) -> VllmEngine:
    import json

    raw = body if isinstance(body, str) else json.dumps(body)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=raw))
    names = dict.fromkeys(BOTH, "x")
    http = httpx.AsyncClient(transport=transport)
    return VllmEngine(http, "http://replica", "key", name="vllm", names=names, timeout_seconds=5)
