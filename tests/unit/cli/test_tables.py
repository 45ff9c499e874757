"""What a cell of a table shows."""

import pytest

from cli.output import _cell


@pytest.mark.parametrize(
    ("value", "shown"),
    [(["ftjob-1", "ftjob-2"], "ftjob-1, ftjob-2"), ((0,), "0"), ([], ""), ("a\nb", r"a\nb"), (None, "")],
    ids=str,
)
def test_a_value_is_in_one_line_and_several_as_people_list_them(value, shown):
    assert _cell(value).plain == shown
