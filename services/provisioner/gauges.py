"""Prometheus gauges of pools."""

from prometheus_client import Gauge

from services.provisioner import store
from shared.telemetry.row_gauges import RowGauge

DEVICES = Gauge("pool_devices", "Devices of the pool's machines", ["pool", "capacity_type"])
HELD = Gauge("pool_held_devices", "Devices of the pool that nodes and leases hold", ["pool", "capacity_type"])
CORDONED = Gauge("pool_cordoned_machines", "Machines of the pool that get no new nodes", ["pool"])

GAUGES = (
    RowGauge(DEVICES, store.COUNT_DEVICES),
    RowGauge(HELD, store.COUNT_HELD),
    RowGauge(CORDONED, store.COUNT_CORDONED),
)
