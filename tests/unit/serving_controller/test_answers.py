import pytest

from services.serving_controller.clients.probe import ProbeFailed, require_answer
from services.serving_controller.clients.vllm import Answer


def an_answer(*positions):
    """At each position: log-probability by token, the first of them said."""
    return Answer(tuple(next(iter(likeliest)) for likeliest in positions), positions)


class TestDistance:
    def test_of_equal_answers_is_nothing(self):
        answer = an_answer({"a": -0.1, "b": -2.0}, {"c": -0.3})
        assert answer.distance(answer) == 0.0

    def test_is_the_largest_difference_of_a_token(self):
        assert an_answer({"a": -0.1, "b": -2.0}).distance(an_answer({"a": -0.2, "b": -2.5})) == pytest.approx(
            0.5
        )

    def test_counts_a_token_that_one_does_not_list_as_its_last(self):
        mine, others = an_answer({"a": -0.1, "b": -2.0}), an_answer({"a": -0.1, "c": -3.0})
        assert mine.distance(others) == pytest.approx(1.0)
        assert others.distance(mine) == pytest.approx(1.0)

    def test_ends_where_the_texts_part(self):
        mine = an_answer({"a": -0.1, "b": -0.2}, {"x": -1.0})
        others = an_answer({"b": -0.1, "a": -0.2}, {"x": -9.0})
        assert mine.distance(others) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "answer",
    [Answer((), ()), an_answer({"a": float("nan")}), an_answer({"a": -1.0}, {"b": float("-inf")})],
    ids=["nothing", "not a number", "infinite"],
)
def test_an_answer_without_finite_numbers_fails_its_probe(answer):
    with pytest.raises(ProbeFailed, match="tiny"):
        require_answer("tiny", answer)
