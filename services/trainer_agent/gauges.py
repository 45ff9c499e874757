"""Prometheus counters of the door at which nodes ask."""

from prometheus_client import Counter

REFUSED = Counter(
    "object_requests_refused_total", "Requests of nodes for objects that were not signed", ["reason"]
)
