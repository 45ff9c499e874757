"""Prometheus gauges of jobs that have not ended."""

from prometheus_client import Gauge

from services.scheduler import store
from shared.telemetry.row_gauges import RowGauge

JOBS = Gauge("jobs", "Jobs that have not ended", ["state", "tier"])
LONGEST_QUEUED = Gauge(
    "jobs_longest_queued_seconds", "Since the job that waits longest came into the queue, seconds", ["tier"]
)

GAUGES = (RowGauge(JOBS, store.COUNT_OPEN_JOBS), RowGauge(LONGEST_QUEUED, store.LONGEST_QUEUED))
