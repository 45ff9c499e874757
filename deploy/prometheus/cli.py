"""`python -m deploy.prometheus`: install Prometheus, and run one that watches the local stack."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.local.errors import MissingPart, StackError
from deploy.local.state import State
from deploy.prometheus.packages import PROMETHEUS
from deploy.prometheus.server import Prometheus, targets_of
from schemas.topics import SERVICES

DONE = 0
ENDING = (signal.SIGINT, signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except StackError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.prometheus", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    setup = commands.add_parser("setup", help="install the package where root and apt can do that")
    setup.add_argument(
        "--optional", action="store_true", help="where it cannot be had, print why and succeed"
    )
    setup.set_defaults(run=_setup)
    up = commands.add_parser("up", help="watch the local stack until Ctrl-C")
    up.add_argument("folder", type=Path, help="what Prometheus keeps, its configuration and its log")
    up.add_argument(
        "--state", type=Path, default=Path(".retune"), help="the folder of the stack (default: .retune)"
    )
    up.set_defaults(run=_up)
    return parser


def _setup(options: argparse.Namespace) -> int:
    try:
        programs = PROMETHEUS.set_up()
    except MissingPart as missing:
        if not options.optional:
            raise
        print(f"Prometheus {missing}; its tests are skipped")
        return DONE
    print(f"Prometheus {programs['prometheus']}")
    return DONE


def _up(options: argparse.Namespace) -> int:
    if not (options.state / "env").exists():
        raise StackError(f"--state {options.state}: no local stack was started there; run `make up` first")
    state = State(options.state)
    targets = targets_of(state, {service: (service,) for service in SERVICES})
    with Prometheus(options.folder, targets, ca_file=state.ca_file) as prometheus:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # after Prometheus, which would inherit that
        print(f"Prometheus answers at {prometheus.url}", flush=True)
        signal.sigwait(ENDING)
    return DONE
