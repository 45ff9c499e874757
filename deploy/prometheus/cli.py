"""`python -m deploy.prometheus`: install Prometheus, and run one that watches the local stack."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from deploy.command_line import CommandLine, until_ctrl_c
from deploy.local.errors import StackError
from deploy.local.state import State
from deploy.prometheus.packages import PROMETHEUS
from deploy.prometheus.server import Prometheus, targets_of
from schemas.topics import SERVICES


def main(arguments: Sequence[str] | None = None) -> int:
    command_line = CommandLine("deploy.prometheus", __doc__)
    command_line.add_packages(PROMETHEUS)
    folder = "what Prometheus keeps, its configuration and its log"
    up = command_line.add_up(_up, does="watch the local stack", folder=folder)
    up.add_argument(
        "--state", type=Path, default=Path(".retune"), help="the folder of the stack (default: .retune)"
    )
    return command_line.run(arguments)


def _up(options: argparse.Namespace) -> int:
    if not (options.state / "env").exists():
        raise StackError(f"--state {options.state}: no local stack was started there; run `make up` first")
    state = State(options.state)
    targets = targets_of(state, {service: (service,) for service in SERVICES})
    with Prometheus(options.folder, targets, ca_file=state.ca_file) as prometheus:
        return until_ctrl_c(f"Prometheus answers at {prometheus.url}")
