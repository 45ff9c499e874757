"""Prometheus' programs, which are the distribution's packages."""

from deploy.packages import Packages

PROMETHEUS = Packages(
    "Prometheus", names=("prometheus",), programs=("prometheus", "promtool"), target="setup-prometheus"
)
