"""Prometheus counters of the doors at which nodes ask."""

from prometheus_client import Counter

OBJECTS_REFUSED = Counter(
    "object_requests_refused_total", "Requests of nodes for objects that were not signed", ["reason"]
)
DIRECTIVES_REFUSED = Counter(
    "directive_requests_refused_total", "Requests of nodes for directives that were not answered", ["reason"]
)
