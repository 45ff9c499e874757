import pytest

from shared import failpoints
from shared.failpoints import FailpointHit, failpoint


@pytest.fixture
def arm(monkeypatch):
    def arm(text):
        armed = failpoints._parse(text)
        monkeypatch.setattr(failpoints, "_armed", lambda: armed)

    return arm


def test_nothing_happens_where_none_is_armed(arm):
    arm("")
    failpoint("relay.sent")


def test_it_fires_at_the_pass_that_was_asked_for_and_only_then(arm):
    arm("relay.sent=raise@2;tx.begun=raise@9")
    failpoint("relay.sent")
    with pytest.raises(FailpointHit, match=r"relay\.sent"):
        failpoint("relay.sent")
    failpoint("relay.sent")


def test_a_misspelt_action_is_an_error():
    with pytest.raises(ValueError, match="found action 'explode'"):
        failpoints._parse("relay.sent=explode")


def test_a_misspelt_name_is_an_error():
    with pytest.raises(ValueError, match=r"found 'relay\.send', expected one of .*'relay\.sent'"):
        failpoints._parse("relay.send=kill")
