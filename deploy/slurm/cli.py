"""`python -m deploy.slurm`: install Slurm's packages, and run a cluster of this machine for trying."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.local.errors import MissingPart, StackError
from deploy.slurm.cluster import NODES, SlurmCluster
from deploy.slurm.packages import SLURM

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
    parser = argparse.ArgumentParser(prog="python -m deploy.slurm", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    setup = commands.add_parser("setup", help="install Slurm's packages where root and apt can do that")
    setup.add_argument(
        "--optional", action="store_true", help="where it cannot be had, print why and succeed"
    )
    setup.set_defaults(run=_setup)
    up = commands.add_parser("up", help="run a cluster of this machine until Ctrl-C")
    up.add_argument(
        "folder", type=Path, help="what the daemons keep; clients need SLURM_CONF=<folder>/slurm.conf"
    )
    up.add_argument("--nodes", type=int, default=NODES)
    up.set_defaults(run=_up)
    return parser


def _setup(options: argparse.Namespace) -> int:
    try:
        programs = SLURM.set_up()
    except MissingPart as missing:
        if not options.optional:
            raise
        print(f"Slurm     {missing}; its tests are skipped")
        return DONE
    print(f"Slurm     {programs['slurmctld']}")
    return DONE


def _up(options: argparse.Namespace) -> int:
    with SlurmCluster(options.folder, nodes=options.nodes) as cluster:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # after the daemons, which would inherit that
        print(f"{len(cluster.nodes)} nodes are idle: export SLURM_CONF={cluster.conf}", flush=True)
        signal.sigwait(ENDING)
    return DONE
