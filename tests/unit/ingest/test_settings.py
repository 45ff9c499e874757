"""How many datasets are validated at once."""

import pytest

from services.ingest import settings as module
from services.ingest.settings import Settings

NEEDED = {
    "kafka_bootstrap": "127.0.0.1:9092",
    "kafka_username": "ingest",
    "kafka_password": "x",
    "postgres_dsn": "postgresql://ingest@127.0.0.1/x",
    "http_port": 8000,
    "scratch_dir": "/tmp/scratch",
}


@pytest.mark.parametrize(
    ("changed", "validations"),
    [({}, 8), ({"workers": 3}, 2), ({"workers": 16}, 1), ({"workers": 3, "validations": 5}, 5)],
)
def test_validations_share_the_cores_unless_the_operator_says_otherwise(changed, validations, monkeypatch):
    monkeypatch.setattr(module, "usable_cores", lambda: 8)
    assert Settings(**NEEDED, **changed).validations_at_once == validations
