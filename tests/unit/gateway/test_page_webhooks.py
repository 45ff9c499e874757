"""What the page says of an endpoint and of a delivery."""

from datetime import timedelta
from typing import Any

import pytest

from services.gateway.page.webhooks import ENDS, delivery_view, endpoint_view, version_of
from services.gateway.routes.webhooks import OWNERS_CHOICE
from services.gateway.webhooks.model import Delivery, Endpoint
from tests.builders import NOON

ENDPOINT = Endpoint.model_validate({
    "endpoint_id": "whe_1", "tenant": "demo", "name": "ours", "url": "https://hooks.example.com", "event_types": ENDS,
    "nonce": "n", "previous_nonce": None, "previous_until": None, "is_enabled": True, "disabled_reason": "",
    "disabled_at": None, "failing_since": None, "created_at": NOON, "updated_at": NOON,
})  # fmt: skip
DELIVERY = Delivery.model_validate({
    "delivery_id": "whd_1", "endpoint_id": "whe_1", "event_id": "evt_1", "event_type": "ping", "subject": "ftjob-1",
    "body": "{}", "replay_of": None, "state": "pending", "attempts": 0, "first_attempt_at": None,
    "last_attempt_at": None, "status_code": None, "error": "", "created_at": NOON,
})  # fmt: skip


def test_a_new_endpoint_is_sent_the_ends_of_jobs():
    assert ENDS == ("fine_tuning.job.cancelled", "fine_tuning.job.failed", "fine_tuning.job.succeeded")


@pytest.mark.parametrize(
    ("changes", "word", "sentence"),
    [
        ({}, "enabled", ""),
        ({"failing_since": NOON}, "failing", "nothing was taken since"),
        ({"is_enabled": False, "disabled_reason": OWNERS_CHOICE}, "disabled", OWNERS_CHOICE),
        (
            {"is_enabled": False, "disabled_reason": "410 Gone", "failing_since": NOON},
            "switched off",
            "410 Gone",
        ),
    ],
)
def test_an_endpoint_says_what_is_wrong_with_it(changes, word, sentence):
    view = endpoint_view(ENDPOINT.model_copy(update=changes), "root")
    assert (view.badge.word, view.sentence[: len(sentence)]) == (word, sentence)
    assert view.secret_hint.startswith("whsec_…")


@pytest.mark.parametrize(
    ("changes", "due_in", "is_enabled", "expected"),
    [
        ({}, None, True, ("waiting", "–", "after an earlier one", "it is still to be sent")),
        ({}, 0.5, True, ("waiting", "–", "any moment", "it is still to be sent")),
        (
            {"attempts": 2, "status_code": 500},
            90,
            True,
            ("retrying", "status 500", "in 1 min 30 s", "it is still"),
        ),
        (
            {"attempts": 1, "error": "refused"},
            90,
            False,
            ("retrying", "refused", "once it is enabled", "it is"),
        ),
        (
            {"state": "delivered", "attempts": 1, "status_code": 204},
            None,
            True,
            ("delivered", "status 204", "–", ""),
        ),
        ({"state": "failed", "attempts": 9}, None, False, ("failed", "–", "–", "the endpoint is disabled")),
    ],
)
def test_a_delivery_says_what_follows(changes: Any, due_in, is_enabled, expected):
    endpoint = ENDPOINT.model_copy(update={"is_enabled": is_enabled})
    due_at = None if due_in is None else NOON + timedelta(seconds=due_in)
    view = delivery_view(DELIVERY.model_copy(update=changes), endpoint, due_at, now=NOON)
    word, answer, next_try, why_not = expected
    assert (view.badge.word, view.answer, view.next_try) == (word, answer, next_try)
    assert view.why_not_replayed.startswith(why_not)
    assert bool(view.why_not_replayed) is bool(why_not)


def test_a_page_is_sent_again_where_anything_on_it_is_other_than_before():
    changed = [DELIVERY.model_copy(update=each) for each in ({"state": "failed"}, {"attempts": 1})]
    seen = [
        version_of(ENDPOINT, [DELIVERY], {}),
        version_of(ENDPOINT.model_copy(update={"failing_since": NOON}), [DELIVERY], {}),
        version_of(ENDPOINT, [DELIVERY], {"whd_1": NOON}),
        version_of(ENDPOINT, [], {}),
        *(version_of(ENDPOINT, [each], {}) for each in changed),
    ]
    assert len({*seen}) == len(seen)
    assert version_of(ENDPOINT, [DELIVERY], {}) == seen[0]
