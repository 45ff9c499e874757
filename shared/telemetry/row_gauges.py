"""Gauges that show rows of a service's tables: every process of the service shows the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from prometheus_client import Gauge

from shared.postgres.database import Database

SHOW_EVERY = timedelta(seconds=5)


@dataclass(frozen=True)
class RowGauge:
    gauge: Gauge
    query: str
    """Its columns are the gauge's labels, in their order, and then its value.

    It reads nothing that grows with history (decision 0034).
    """


class RowGauges:
    def __init__(self, database: Database, gauges: Sequence[RowGauge]) -> None:
        self._database = database
        self._gauges = gauges

    async def show(self) -> None:
        """Show the rows that there are now and no others."""
        for each in self._gauges:
            rows = await self._database.fetch(each.query)
            each.gauge.clear()
            for *labels, value in rows:
                each.gauge.labels(*labels).set(value)
