"""`python -m deploy.slurm`: install Slurm's packages, and run a cluster of this machine for trying."""

import argparse
from collections.abc import Sequence

from deploy.command_line import CommandLine, until_ctrl_c
from deploy.slurm.cluster import NODES, SlurmCluster
from deploy.slurm.packages import SLURM


def main(arguments: Sequence[str] | None = None) -> int:
    command_line = CommandLine("deploy.slurm", __doc__)
    command_line.add_packages(SLURM)
    folder = "what the daemons keep; clients need SLURM_CONF=<folder>/slurm.conf"
    up = command_line.add_up(_up, does="run a cluster of this machine", folder=folder)
    up.add_argument("--nodes", type=int, default=NODES)
    return command_line.run(arguments)


def _up(options: argparse.Namespace) -> int:
    with SlurmCluster(options.folder, nodes=options.nodes) as cluster:
        return until_ctrl_c(f"{len(cluster.nodes)} nodes are idle: export SLURM_CONF={cluster.conf}")
