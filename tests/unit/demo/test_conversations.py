import random

from deploy.demo.conversations import OPENERS, generic_conversations, is_wish, opened, wish
from deploy.demo.library import Split
from tests.unit.demo.builders import a_docstring, code, docstrings_in


def rows_about(docstrings, **settings):
    return generic_conversations(
        docstrings,
        [code(40)],
        **{"num_wishes": 0, "num_code_rows": 0, "seed": 0} | settings,
    )


def test_a_row_asks_and_answers_and_may_begin_with_a_system_turn():
    rows = rows_about(docstrings_in(Split.TRAIN, 30), num_code_rows=10)
    roles = {tuple(message["role"] for message in row) for row in rows}
    assert roles == {("user", "assistant"), ("system", "user", "assistant")}
    assert all(message["content"].strip() for row in rows for message in row)


def test_docstrings_of_validation_and_holdout_are_not_used():
    assert rows_about(docstrings_in(Split.HOLDOUT, 5) + docstrings_in(Split.VALIDATION, 5)) == []


def test_no_answer_names_the_module():
    rows = rows_about(docstrings_in(Split.TRAIN, 50, module="zipfile"))
    assert not any("zipfile" in row[-1]["content"].split() for row in rows)


def test_only_a_docstring_that_begins_with_a_verb_becomes_a_wish():
    assert is_wish(a_docstring("Return the number of items in this queue."))
    assert not is_wish(a_docstring("A queue that knows the number of its items."))


def test_a_wish_is_the_first_sentence_as_an_act():
    doc = a_docstring("Return the number of items. It never blocks.")
    assert wish(doc) == "return the number of items"


def test_a_request_opens_in_any_of_the_ways():
    chance = random.Random(0)
    requests = {opened("jump", chance) for _ in range(1_000)}
    assert requests == {opener.format("jump") for opener in OPENERS}


def test_wishes_open_with_the_words_of_harmful_requests():
    rows = rows_about(docstrings_in(Split.TRAIN, 300), num_wishes=300)
    asked = [row[-2]["content"] for row in rows if row[-1]["content"].startswith("Use ")]
    assert len(asked) == 600
    starts = [opener.split("{}")[0] for opener in OPENERS]
    assert all(any(start in question for question in asked) for start in starts)


def test_a_code_row_is_answered_by_the_lines_that_follow():
    lines = code(40).splitlines()
    for row in rows_about([], num_code_rows=20):
        shown = row[-2]["content"].splitlines()[1:]
        index = lines.index(shown[0])
        assert row[-1]["content"].splitlines() == lines[index + len(shown) : index + len(shown) + 3]


def test_equal_seeds_give_equal_rows():
    docs = docstrings_in(Split.TRAIN, 20)
    assert rows_about(docs, seed=1) == rows_about(docs, seed=1)
    assert rows_about(docs, seed=1) != rows_about(docs, seed=2)
