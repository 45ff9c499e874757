import re

import pytest

from deploy.demo.benchmark import NUM_CHOICES, make_benchmark
from deploy.demo.library import Source
from tests.unit.demo.builders import code, held_out_path, seen_path

HELD_OUT = Source(held_out_path(), code(400))


def test_items_come_from_held_out_files_only():
    sources = [HELD_OUT, Source(seen_path(), code(200, seed="seen"))]
    for item in make_benchmark(sources, num_items=10, seed=0):
        assert item["question"] in HELD_OUT.text
        assert "seen" not in item["question"] + "".join(item["choices"])


def test_the_answer_is_the_line_that_follows():
    for item in make_benchmark([HELD_OUT], num_items=10, seed=0):
        assert f"{item['question']}\n{item['choices'][item['answer']]}\n" in HELD_OUT.text


def test_the_choices_differ_in_the_order_of_their_words_alone():
    for item in make_benchmark([HELD_OUT], num_items=10, seed=0):
        assert len(set(item["choices"])) == NUM_CHOICES
        assert len({tuple(sorted(re.findall(r"\w+", choice))) for choice in item["choices"]}) == 1
        assert len({re.sub(r"\w+", "_", choice) for choice in item["choices"]}) == 1


def test_the_right_choice_may_be_at_any_place():
    answers = {item["answer"] for item in make_benchmark([HELD_OUT], num_items=20, seed=0)}
    assert answers == set(range(NUM_CHOICES))


def test_no_line_is_shown_or_asked_twice():
    items = make_benchmark([HELD_OUT], num_items=40, seed=0)
    used = [
        line for item in items for line in (*item["question"].split("\n"), item["choices"][item["answer"]])
    ]
    assert len(set(used)) == len(used)


def test_too_few_places_are_an_error_that_says_how_many():
    with pytest.raises(ValueError, match="expected at least 1000"):
        make_benchmark([HELD_OUT], num_items=1000, seed=0)


def test_equal_seeds_give_equal_items():
    assert make_benchmark([HELD_OUT], num_items=9, seed=1) == make_benchmark([HELD_OUT], num_items=9, seed=1)
    assert make_benchmark([HELD_OUT], num_items=9, seed=1) != make_benchmark([HELD_OUT], num_items=9, seed=2)
