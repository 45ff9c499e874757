from datetime import timedelta

import pytest
from pydantic import ValidationError

from shared.settings import ServiceSettings, Timing
from tests.chaos.scale import note


def test_the_defaults_stand_in_order():
    Timing()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"handler_budget": 6}, "handler_budget"),
        ({"revoke_wait": 40, "handler_budget": 5}, "revoke_wait"),
        ({"rebalance_timeout": 31}, "rebalance_timeout"),
        ({"heartbeat": 11}, "3 x heartbeat"),
        ({"postgres_silence": 4}, "handler_budget"),
        ({"lease_renew": 6}, "3 x lease_renew"),
        ({"outbox_retention": 6 * 86_400}, "outbox_retention"),
    ],
)
def test_each_inequality_is_asserted_at_start(changed, message):
    with pytest.raises(ValidationError, match=message):
        Timing(**{name: timedelta(seconds=seconds) for name, seconds in changed.items()})
    note("inequality broken", refused=1)


def test_encryption_that_no_client_has_yet_is_refused():
    with pytest.raises(ValidationError, match="kafka_security_protocol"):
        ServiceSettings(_env_file=None, kafka_security_protocol="SASL_SSL")


def test_a_missing_address_or_secret_stops_the_process():
    with pytest.raises(ValidationError, match="kafka_password"):
        ServiceSettings(_env_file=None)
