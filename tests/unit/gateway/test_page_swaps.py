"""How long a generation of a slot took from its approval to its first readiness."""

import json
from datetime import timedelta

from services.gateway.page import swaps
from services.gateway.page.swaps import LOOKED_AT, seconds_until_ready
from services.gateway.recent_events import SentRecord
from tests.builders import NOON


def sent(slot: str, generation: int, seconds: float) -> SentRecord:
    payload = json.dumps({"slot": slot, "generation": generation})
    return SentRecord(payload=payload, sent_at=NOON + timedelta(seconds=seconds))


def test_the_first_readiness_of_a_generation_counts():
    approved = [sent("a", 2, 100), sent("b", 1, 5), sent("a", 1, 0)]
    ready = [sent("a", 2, 500), sent("a", 2, 112.5), sent("a", 1, 7)]
    assert seconds_until_ready(approved, ready) == {("a", 1): 7.0, ("a", 2): 12.5}


def test_one_without_its_approval_is_not_known():
    assert seconds_until_ready([], [sent("a", 1, 7)]) == {}


def test_a_first_time_that_was_not_looked_at_is_not_known(monkeypatch):
    approved, ready = [sent("b", 1, 50), sent("a", 1, 0)], [sent("b", 1, 60), sent("a", 1, 40)]
    assert len(ready) < LOOKED_AT
    assert seconds_until_ready(approved, ready) == {("a", 1): 40.0, ("b", 1): 10.0}
    monkeypatch.setattr(swaps, "LOOKED_AT", 2)
    assert seconds_until_ready(approved, ready) == {("b", 1): 10.0}


def test_clocks_that_differ_give_no_negative_time():
    assert seconds_until_ready([sent("a", 1, 3)], [sent("a", 1, 2)]) == {("a", 1): 0.0}
