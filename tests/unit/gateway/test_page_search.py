"""What a person types to find jobs."""

from datetime import timedelta
from decimal import Decimal

import pytest

from schemas.lifecycle import JobState
from services.gateway.job_readmodels import JobFilter, escaped
from services.gateway.page.search import GROUPS, has_status, parse, with_status
from shared.errors import Refused


def test_terms_and_words_make_a_filter():
    assert parse("status:failed base:qwen cost>5 ended<2d support ft") == JobFilter(
        states=(JobState.FAILED,),
        base="qwen",
        cost_above=Decimal(5),
        ended_within=timedelta(days=2),
        words=("support", "ft"),
    )


def test_nothing_is_everything():
    assert parse("  ") == JobFilter()


def test_a_name_that_is_none_of_ours_is_of_the_metadata():
    assert parse("team:search owner:ann").metadata == {"team": "search", "owner": "ann"}


def test_every_state_is_in_one_group():
    states = [state for group in GROUPS.values() for state in group]
    assert sorted(states) == sorted(JobState)


@pytest.mark.parametrize(
    "term", ["status:nowhere", "cost>a", "cost<5", "ended<2", "created<2weeks", "loss>3"]
)
def test_what_cannot_be_searched_for_is_named_with_what_can(term):
    with pytest.raises(Refused, match=f"found '{term}', expected") as caught:
        parse(f"words {term}")
    assert caught.value.param == "q"


def test_a_status_takes_the_place_of_another():
    assert with_status("status:failed base:x", "paused") == "status:paused base:x"
    assert with_status("status:failed base:x", "") == "base:x"
    assert has_status("base:x status:failed", "failed")
    assert has_status("base:x", "")


def test_what_like_would_understand_is_taken_as_it_is():
    assert escaped("50%_\\") == "50\\%\\_\\\\"
