from datetime import timedelta

import pytest
from pydantic import ValidationError

from deploy.local import certificates
from shared.clock import utc_now
from shared.settings import ServiceSettings, Timing
from shared.tls import Tls
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


def test_an_address_in_plain_text_is_refused_where_servers_are_verified(tmp_path):
    certificates.renew_authority(tmp_path, now=utc_now())
    addresses = {"kafka_bootstrap": "k:1", "postgres_dsn": "postgresql://p", "http_port": 1}
    login = {"kafka_username": "tracker", "kafka_password": "x"}
    tls = Tls(ca_file=tmp_path / certificates.AUTHORITY)
    with pytest.raises(ValidationError, match="S3_ENDPOINT: found http://s3, expected https://"):
        ServiceSettings(_env_file=None, **addresses, **login, s3_endpoint="http://s3", tls=tls)
    ServiceSettings(_env_file=None, **addresses, **login, s3_endpoint="https://s3", tls=tls)


def test_a_missing_address_or_secret_stops_the_process():
    with pytest.raises(ValidationError, match="kafka_password"):
        ServiceSettings(_env_file=None)
