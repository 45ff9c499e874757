"""What the operator allows at once is what workers there are."""

import pytest

from services.evaluator.app import build as build_evaluator
from services.evaluator.settings import Settings as EvaluatorSettings
from services.ingest.app import build as build_ingest
from services.ingest.settings import Settings as IngestSettings

NEEDED = {
    "kafka_bootstrap": "127.0.0.1:9092",
    "kafka_username": "x",
    "kafka_password": "x",
    "postgres_dsn": "postgresql://x@127.0.0.1/x",
    "s3_endpoint": "http://127.0.0.1:1",
    "s3_access_key": "x",
    "s3_secret_key": "x",
    "http_port": 8000,
    "scratch_dir": "/tmp/scratch",
}


@pytest.mark.parametrize(
    ("service", "kind"),
    [
        (lambda: build_ingest(IngestSettings(**NEEDED, validations=5)), "ValidateDataset"),
        (lambda: build_evaluator(EvaluatorSettings(**NEEDED, gates=5)), "RunGate"),
    ],
    ids=["ingest", "evaluator"],
)
async def test_so_many_tasks_run_at_once_as_the_settings_say(service, kind):
    kinds = {each.name: each.concurrency for each in service()._tasks._kinds}
    assert kinds.pop(kind) == 5
    assert set(kinds.values()) == {1}
