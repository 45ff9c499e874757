"""Excerpts as the command line prints them."""

from cli.commands.excerpts import excerpts_text
from schemas.excerpts import DatasetExcerpts
from tests.builders import a_sha
from tests.reports import excerpts_of_rows


def test_a_duplicate_is_shown_as_what_differs_from_the_kept_row() -> None:
    lines = excerpts_text(excerpts_of_rows()).splitlines()
    begin = lines.index("line 4 of the training file is kept; repeated by 20:")
    assert lines[begin + 1 : begin + 4] == [
        "  line 100 of the training file, similarity 93.0%",
        "    -… user: What is 7 times 7? ",
        "    +… user: What is 7 multiplied by 7? ",
    ]
    assert "  line 9 of the training file, equal" in lines


def test_shared_words_are_marked_and_those_of_the_operator_counted() -> None:
    text = excerpts_text(excerpts_of_rows())
    assert "holds 84.0% of item 12 of mmlu: 15 shared words, 15 in one run" in text
    assert "item: (5 words) [[a train leaves" in text
    assert "to the sea ]] (1 words)" in text


def test_figures_of_each_length_have_a_line() -> None:
    lines = excerpts_text(excerpts_of_rows()).splitlines()
    assert lines[-2].split()[:6] == ["512", "880", "12", "210", "15.4%", "79.8%"]
    assert lines[-1].endswith("if chosen, of the first 880 rows")


def test_nothing_is_said_to_be_nothing() -> None:
    shown = excerpts_text(DatasetExcerpts(version=a_sha("version"), tenant="demo"))
    assert shown == "no duplicates, no contaminated rows and no windows to show"
