"""Prometheus gauges of replicas and of what they have loaded."""

from prometheus_client import Gauge

from services.serving_controller import store
from shared.telemetry.row_gauges import RowGauge

REPLICAS = Gauge("replicas", "Replicas of a base model", ["base_model", "phase"])
LOADED = Gauge("replica_loaded_models", "Models that a replica has loaded", ["base_model", "replica"])
MODELS = Gauge("models_to_serve", "Models that replicas shall serve, pending until each has it", ["state"])

GAUGES = (
    RowGauge(REPLICAS, store.COUNT_REPLICAS),
    RowGauge(LOADED, store.COUNT_LOADED),
    RowGauge(MODELS, store.COUNT_WANTED),
)
