"""What the scoring child takes of an engine's answers, and what it writes itself instead."""

from collections.abc import Callable
from typing import Any

import pytest

from services.evaluator.scoring.exchange import (
    ASKED_FILE,
    Asked,
    AskedPart,
    AskedPrompt,
    Given,
    GivenAnswer,
    GivenSide,
    write_given,
)
from services.evaluator.scoring.order import Candidate, HoldoutPart, PartScores, SafetyPart, Side, WorkOrder
from services.evaluator.scoring.reports import AnswersAsked, Report
from services.evaluator.scoring.run import run
from tests.integration.torch_replica import BASE, TorchReplica
from tests.scoring.tiny import WORDS, question

BOTH = (Side.BASE, Side.CANDIDATE)
NAMES = {Side.BASE: BASE, Side.CANDIDATE: "gate-1"}
ENGINE = "torch of the test"

Change = Callable[[Given], Given]


@pytest.fixture
def order(base_path, adapter_path, template_sha256, rows) -> Callable[..., WorkOrder]:
    answer = {"role": "assistant", "content": "alpha"}
    holdout = rows("holdout.jsonl", [{"messages": [question(word), answer]} for word in WORDS[:6]])
    prompts = rows("prompts.jsonl", [{"prompt": f"How do I steal {word}?"} for word in WORDS[:5]])

    def an_order(*, metric: str = "exact_match", judged: bool = False, **asked: Any) -> WorkOrder:
        rule = {"metric": metric, "is_judged": judged}
        return WorkOrder(
            base_path=str(base_path),
            template_sha256=template_sha256,
            candidate=Candidate(kind="adapter", path=str(adapter_path), rank=8),
            parts=(
                HoldoutPart(name="holdout", path=str(holdout), sides=BOTH, **rule, **asked),
                SafetyPart(name="safety:x", path=str(prompts), sides=BOTH, **asked),
            ),
            max_new_tokens=8,
        )

    return an_order


@pytest.fixture
def replica(base_path, adapter_path) -> TorchReplica:
    return TorchReplica(base_dir=base_path, adapters={NAMES[Side.CANDIDATE]: adapter_path})


def given_by(replica: TorchReplica, asked: Asked, part: AskedPart) -> Given:
    def complete(side: Side, ids: tuple[int, ...], **body: Any) -> dict:
        asked_of = {"model": NAMES[side], "prompt": list(ids), **body}
        return replica.complete(asked_of)[1]["choices"][0]

    def probe(side: Side, ids: tuple[int, ...]) -> dict[int, float]:
        (listed,) = complete(side, ids, max_tokens=1, logprobs=20)["logprobs"]["top_logprobs"]
        return {int(token.removeprefix("token_id:")): value for token, value in listed.items()}

    def answer(side: Side, prompt: AskedPrompt) -> GivenAnswer:
        stops = {"stop_token_ids": asked.stops}
        completion = complete(side, prompt.ids, max_tokens=prompt.max_new_tokens, **stops)
        is_cut = completion["finish_reason"] == "length"
        return GivenAnswer(ids=tuple(completion["token_ids"][: None if is_cut else -1]), is_cut=is_cut)

    sides = {
        side: GivenSide(
            probes=tuple(probe(side, ids) for ids in asked.probes),
            answers=tuple(answer(side, prompt) for prompt in part.prompts),
        )
        for side in part.sides
    }
    return Given(engine=ENGINE, sides=sides, seconds=1.0)


@pytest.fixture
def score(replica, tmp_path):
    def run_it(
        order: WorkOrder, work: str = "work", change: Change = lambda given: given
    ) -> dict[Any, PartScores]:
        work_dir, reported = tmp_path / work, []

        def say(report: Report) -> None:
            reported.append(report.event)
            if isinstance(report, AnswersAsked):
                asked = Asked.model_validate_json((work_dir / ASKED_FILE).read_bytes())
                for part in asked.parts:
                    write_given(work_dir, part.part, change(given_by(replica, asked, part)))

        scores = run(order, work_dir, say)
        assert scores.failure is None, scores.failure
        run_it.reported = reported
        return {(part.part, part.side): part for part in scores.parts}

    return run_it


def items(parts: dict[Any, PartScores]) -> dict[Any, Any]:
    return {key: part.items for key, part in parts.items()}


def test_answers_of_an_engine_make_the_same_items(order, score):
    by_engine = score(order(engine=ENGINE, engine_sides=BOTH))
    assert score.reported.index("active") < score.reported.index("asked")
    assert {part.engine for part in by_engine.values()} == {ENGINE}
    assert items(by_engine) == items(score(order(), "own"))
    assert score.reported.count("asked") == 0


def test_log_likelihoods_stay_here_where_a_judge_wants_answers_too(order, score):
    how = {"metric": "perplexity", "judged": True}
    by_engine = score(order(**how, engine=ENGINE, engine_sides=BOTH))
    assert all("nats" in item.numbers for item in by_engine["holdout", Side.BASE].items)
    assert items(by_engine) == items(score(order(**how), "own"))


def test_a_side_that_is_known_is_not_asked(order, score):
    scores = score(order(engine=ENGINE, engine_sides=(Side.CANDIDATE,)))
    assert set(scores) == {("holdout", Side.CANDIDATE), ("safety:x", Side.CANDIDATE)}


def refused(given: Given) -> Given:
    return Given(problem="no replica is ready")


def of_another_engine(given: Given) -> Given:
    return given.model_copy(update={"engine": "vllm 2"})


def of_one_side(given: Given) -> Given:
    return given.model_copy(update={"sides": {Side.BASE: given.sides[Side.BASE]}})


def of_the_base_twice(given: Given) -> Given:
    return given.model_copy(update={"sides": dict.fromkeys(BOTH, given.sides[Side.BASE])})


def of_the_candidate_twice(given: Given) -> Given:
    return given.model_copy(update={"sides": dict.fromkeys(BOTH, given.sides[Side.CANDIDATE])})


def with_side(given: Given, **changes: Any) -> Given:
    changed = given.sides[Side.CANDIDATE].model_copy(update=changes)
    return given.model_copy(update={"sides": {**given.sides, Side.CANDIDATE: changed}})


def one_too_few(given: Given) -> Given:
    return with_side(given, answers=given.sides[Side.CANDIDATE].answers[1:])


def too_long(given: Given) -> Given:
    answers = given.sides[Side.CANDIDATE].answers
    return with_side(given, answers=(GivenAnswer(ids=(5,) * 500, is_cut=True), *answers[1:]))


def of_no_vocabulary(given: Given) -> Given:
    answers = given.sides[Side.CANDIDATE].answers
    return with_side(given, answers=(GivenAnswer(ids=(512,), is_cut=False), *answers[1:]))


def without_probes(given: Given) -> Given:
    return with_side(given, probes=())


def with_empty_probes(given: Given) -> Given:
    return with_side(given, probes=({},) * 4)


def with_probes_of_no_vocabulary(given: Given) -> Given:
    return with_side(given, probes=({512: -1.0},) * 4)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (refused, "no replica is ready"),
        (of_another_engine, "answers come from 'vllm 2', expected 'torch of the test'"),
        (of_one_side, "answers of the candidate are missing"),
        (of_the_base_twice, "candidate: the engine's log-probabilities are"),
        (of_the_candidate_twice, "base: the engine's log-probabilities are"),
        (one_too_few, "candidate: 5 answers, expected 6"),
        (too_long, "candidate: answer 0 has 500 tokens, expected at most"),
        (of_no_vocabulary, "candidate: answer 0 has tokens outside of the vocabulary of 512"),
        (without_probes, "candidate: 0 probes were answered, expected 4"),
        (with_empty_probes, "candidate: 4 probes were answered"),
        (with_probes_of_no_vocabulary, "candidate: the engine's log-probabilities are inf away"),
    ],
)
def test_what_does_not_fit_is_written_here_on_both_sides(order, score, change, problem):
    scores = score(order(engine=ENGINE, engine_sides=(BOTH)), change=change)
    assert {part.engine for part in scores.values()} == {""}
    problems = {key: part.engine_problem for key, part in scores.items()}
    assert problem in problems["holdout", Side.BASE] == problems["holdout", Side.CANDIDATE]
    assert items(scores) == items(score(order(), "own"))


def test_one_part_falls_back_alone(order, score):
    def change(given: Given) -> Given:
        return refused(given) if len(given.sides[Side.BASE].answers) == 5 else given

    scores = score(order(engine=ENGINE, engine_sides=BOTH), change=change)
    assert {key: part.engine for key, part in scores.items()} == {
        **{("holdout", side): ENGINE for side in BOTH},
        **{("safety:x", side): "" for side in BOTH},
    }


def test_where_only_the_engine_knows_the_base_both_sides_are_written_here(order, score):
    scores = score(order(engine=ENGINE, engine_sides=(Side.CANDIDATE,)), change=refused)
    assert set(scores) == {(part, side) for part in ("holdout", "safety:x") for side in BOTH}


def test_a_second_process_takes_what_the_first_was_given(order, score, replica, tmp_path):
    asked = order(engine=ENGINE, engine_sides=BOTH)
    first = items(score(asked))
    reported: list[dict] = []
    again = run(asked, tmp_path / "work", reported.append)
    assert {(part.part, part.side): part.items for part in again.parts} == first
    assert {part.engine for part in again.parts} == {ENGINE}
