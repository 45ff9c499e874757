"""Events on the page: what the address asks for, and where a subject leads."""

import pytest

from services.gateway.page import events
from services.gateway.recent_events import EventFilter


@pytest.mark.parametrize(
    ("text", "pattern"), [("", None), ("oom", "%oom%"), ("50%_x\\", "%50\\%\\_x\\\\%"), ("'; --", "%'; --%")]
)
def test_a_text_is_looked_for_as_it_is_typed(text, pattern):
    assert EventFilter(text=text).pattern == pattern


def test_the_address_has_what_is_chosen_and_nothing_else():
    listed = events.asked(type="JobFailed", subject=" ftjob-1 ", q="a&b=c", before=7)
    assert listed.address() == "/events?type=JobFailed&subject=ftjob-1&q=a%26b%3Dc&before=7"
    assert listed.address(before=None, subject="") == "/events?type=JobFailed&q=a%26b%3Dc"
    assert events.asked(type="", subject="", q=" ", before=None).address() == "/events"
    assert not events.asked(type="", subject="", q=" ", before=3).is_chosen


@pytest.mark.parametrize(
    ("subject", "link"),
    [
        ("ftjob-1", "/jobs/ftjob-1"),
        ("ds-1", "/datasets/ds-1"),
        ("mv-1", "/models/mv-1"),
        ("sweep-1", "/sweeps/sweep-1"),
        ("acme:slot", None),
    ],
)
def test_a_subject_leads_to_its_page(subject, link):
    assert events.link_of(subject) == link


@pytest.mark.parametrize(
    ("payload", "shown"), [('{"a":{"b":1}}', '{\n  "a": {\n    "b": 1\n  }\n}'), ("no JSON", "no JSON"), ("[" * 10_000, "[" * 10_000)]
)  # fmt: skip
def test_a_payload_has_a_line_for_each_field(payload, shown):
    assert events.pretty(payload) == shown
