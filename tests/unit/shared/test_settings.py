from datetime import timedelta

import pytest
from pydantic import ValidationError

from deploy.local import certificates
from shared.clock import utc_now
from shared.settings import Address, NodeServiceSettings, ServiceSettings, Timing
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


def settings_for_nodes(**changed) -> NodeServiceSettings:
    needed = {"kafka_bootstrap": "k:1", "kafka_username": "u", "kafka_password": "x"}
    own = {"postgres_dsn": "postgresql://p", "http_host": "10.0.0.2", "http_port": 8000}
    return NodeServiceSettings(_env_file=None, **needed, **own | changed)


def test_nodes_have_a_listener_of_their_own_where_its_port_is_set():
    assert settings_for_nodes().listener_of_nodes is None
    assert settings_for_nodes(nodes_port=8001).listener_of_nodes == Address("10.0.0.2", 8001)
    elsewhere = settings_for_nodes(nodes_port=8001, nodes_host="10.1.0.2")
    assert elsewhere.listener_of_nodes == Address("10.1.0.2", 8001)
    with pytest.raises(ValidationError, match="found 8000, which is http_port, expected another port"):
        settings_for_nodes(nodes_port=8000)


def test_a_missing_address_or_secret_stops_the_process():
    with pytest.raises(ValidationError, match="kafka_password"):
        ServiceSettings(_env_file=None)
