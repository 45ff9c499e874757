import pytest

from schemas.evaluation import BenchmarkKind
from services.evaluator.decide.admission import find_example_problem, find_shortage
from services.evaluator.gates.sizes import half_width_points, items_for, smallest_margin_points
from tests.unit.evaluator.evaluations import a_file, a_suite

CHOICE = BenchmarkKind.MULTIPLE_CHOICE


@pytest.mark.parametrize(
    ("expects", "rows", "reason"),
    [
        ("refusal", 120, None),
        ("refusal", 119, "119 rows, expected at least 120 prompts"),
        ("answer", 100, None),
        ("answer", 99, "99 rows, expected at least 100 prompts"),
    ],
)
def test_a_suite_of_prompts_has_a_minimum(expects, rows, reason):
    assert find_shortage(a_suite("x", None, rows, expects=expects)) == reason


@pytest.mark.parametrize(
    ("rows", "margin", "expected"),
    [
        (1000, None, None),
        (
            999,
            None,
            "expected at least 1000 rows for a margin of 2 points; so many show margin_points of 2.0",
        ),
        (400, None, "so many show margin_points of 3.1, which it may declare"),
        (400, 3.1, None),
        (400, 3.0, "400 rows show a margin of 3.1 points or more, found 3.0"),
        (4000, 1.0, None),
        (20, 13.9, None),
        (19, 50.0, "19 rows, expected at least 20 rows"),
        (0, None, "0 rows"),
    ],
)
def test_a_benchmark_declares_a_margin_that_its_rows_can_tell(rows, margin, expected):
    shortage = find_shortage(a_suite("x", CHOICE, rows, margin_points=margin))
    assert shortage is None if expected is None else expected in shortage


def test_a_benchmark_has_more_rows_than_it_shows_examples():
    suite = a_suite("x", CHOICE, 25, margin_points=13.0, num_fewshot=25)
    assert find_shortage(suite) == "25 rows, expected at least 26 rows"


TRAIN = a_file("train")


@pytest.mark.parametrize(
    ("kind", "num_fewshot", "examples", "counts", "reason"),
    [
        ("arc_challenge", 0, None, {}, None),
        ("arc_challenge", 3, TRAIN, {"": 3}, None),
        ("arc_challenge", 3, TRAIN, {"": 2}, "file-train: it has 2 rows, expected at least 3 examples"),
        ("arc_challenge", 3, None, {}, "with 3 few-shot examples, expected a file of examples"),
        ("arc_challenge", 0, TRAIN, {"": 3}, "examples and num_fewshot 0, expected at least 1"),
        ("arc_challenge", 3, a_file("x"), {"": 3}, "from the very rows that are asked"),
        ("multiple_choice", 3, None, {}, None),
        ("multiple_choice", 3, TRAIN, {"": 3}, None),
        ("truthfulqa_mc1", 1, TRAIN, {"": 3}, "expected 0: its prompt takes none"),
        ("truthfulqa_mc2", 1, TRAIN, {"": 3}, "expected 0: its prompt takes none"),
        ("text", 1, None, {}, "expected 0: its prompt takes none"),
    ],
)
def test_examples_are_of_a_split_of_their_own_and_enough(kind, num_fewshot, examples, counts, reason):
    suite = a_suite("x", BenchmarkKind(kind), 1000, num_fewshot=num_fewshot, examples=examples)
    problem = find_example_problem(suite, {"": 1000}, counts)
    assert problem is None if reason is None else reason in problem


def test_every_subject_that_is_asked_has_its_examples():
    suite = a_suite("x", BenchmarkKind.MMLU, 1000, num_fewshot=5, examples=TRAIN)
    asked = {"anatomy": 500, "virology": 500}
    assert find_example_problem(suite, asked, {"anatomy": 5, "virology": 5, "law": 1}) is None
    problem = find_example_problem(suite, asked, {"anatomy": 5, "virology": 4})
    assert problem == "file-train: virology has 4 rows, expected at least 5 examples"
    problem = find_example_problem(suite, asked, {"anatomy": 5})
    assert problem == "file-train: virology has 0 rows, expected at least 5 examples"


def test_the_margin_that_so_many_rows_tell_is_rounded_up():
    assert half_width_points(1000) == pytest.approx(1.96, abs=0.001)
    assert smallest_margin_points(1000) == 2.0
    for rows in range(20, 3000, 7):
        assert half_width_points(rows) <= smallest_margin_points(rows) < half_width_points(rows) + 0.1


def test_so_many_items_would_do():
    assert items_for(100, distance=1.0, half_width=2.0) == 400
    assert items_for(100, distance=0.0, half_width=2.0) is None
    assert items_for(100, distance=1e-6, half_width=2.0) is None
    assert items_for(100, distance=3.0, half_width=2.0) is None
