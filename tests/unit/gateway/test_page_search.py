"""What a person types to find rows of a list."""

from datetime import timedelta
from decimal import Decimal

import pytest

from schemas.lifecycle import JobState
from services.gateway.filters import EVERYTHING, ListFilter, escaped
from services.gateway.job_readmodels import JobFilter
from services.gateway.page import datasets, lists, models, reports, sweeps, views
from services.gateway.page.search import GROUPS, has_status, parse, parse_status, with_status
from shared.errors import Refused

STATUSES = {"ready": ("ready",), "loading": ("pending", "loaded")}


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


def test_a_list_takes_words_and_a_status():
    asked = parse_status("support status:loading qwen", STATUSES)
    assert asked == ListFilter(words=("support", "qwen"), states=("pending", "loaded"))
    assert asked.values == (["pending", "loaded"], ["%support%", "%qwen%"])
    assert parse_status(" ", STATUSES) == EVERYTHING
    assert EVERYTHING.values == (None, None)


def test_several_statuses_are_any_of_them():
    assert parse_status("status:ready status:loading", STATUSES).states == ("ready", "pending", "loaded")
    assert parse("status:paused status:failed").states == (JobState.PAUSED, JobState.FAILED)


def test_no_word_is_left_out_of_a_search():
    assert len(parse("a " * 16).words) == 16
    for read in (parse, lambda text: parse_status(text, STATUSES)):
        with pytest.raises(Refused, match="found 17 words and terms, expected at most 16"):
            read("a " * 17)


def test_words_hold_nothing_that_like_would_understand():
    assert parse_status("100%_", STATUSES).values == (None, ["%100\\%\\_%"])


@pytest.mark.parametrize("term", ["status:pending", "status:x", "base:qwen", "cost>5", "created<2d"])
def test_a_term_that_the_list_does_not_have_is_named_with_those_that_it_has(term):
    expected = f"found '{term}', expected words or status: with one of ready, loading"
    with pytest.raises(Refused, match=expected) as caught:
        parse_status(f"words {term}", STATUSES)
    assert caught.value.param == "q"


@pytest.mark.parametrize(
    "name", ["ft:qwen:acme:support:1f2e3d", "https://ci.example.com:8443/hook", "http://a/b"]
)
def test_names_of_versions_and_urls_are_words(name):
    assert parse_status(name, STATUSES) == ListFilter(words=(name,))
    assert parse(name) == JobFilter(words=(name,))


@pytest.mark.parametrize("badges", [reports.STATES, sweeps.STATES, views.ROUTES, views.STAGES])
def test_every_state_is_found_by_the_word_that_is_shown(badges):
    statuses = lists.statuses(badges)
    assert [state for states in statuses.values() for state in states] == [*badges]
    assert [*statuses] == [badge.word for badge in badges.values()]
    assert all(parse_status(f"status:{word}", statuses).states for word in statuses)


def an_address(**changes) -> lists.Asked:
    of_list = {"path": "/datasets", "q": "status:ready a b", "after": "ds-1", "only": EVERYTHING}
    of_list |= {"sort": "created", "orders": datasets.ORDERS, "statuses": ("ready", "rejected")}
    return lists.Asked(**of_list | changes)


def test_an_address_keeps_what_is_searched():
    listed = an_address()
    assert listed.address(after="ds-2") == "/datasets?q=status%3Aready+a+b&after=ds-2"
    assert listed.address(q="", after=None) == "/datasets"
    assert listed.stream is None, "a page of older rows"
    assert an_address(after=None).stream == "/datasets/stream?q=status%3Aready+a+b"
    listed = an_address(sort="tokens", after=None)
    assert listed.stream == "/datasets/stream?q=status%3Aready+a+b&sort=tokens"
    assert listed.address(sort="created", q="") == "/datasets", "the usual one"
    of_base = models.Asked(**vars(an_address(path="/models", after=None)), base="tiny/base")
    assert of_base.stream == "/models/stream?base=tiny%2Fbase&q=status%3Aready+a+b"


def test_chips_put_a_status_in_place_of_another_and_begin_at_the_first_page():
    chosen = {chip.word: (chip.address, chip.is_chosen) for chip in an_address().chips}
    assert chosen == {
        "all": ("/datasets?q=a+b", False),
        "ready": ("/datasets?q=status%3Aready+a+b", True),
        "rejected": ("/datasets?q=status%3Arejected+a+b", False),
    }
