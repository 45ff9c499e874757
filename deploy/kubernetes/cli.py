"""`python -m deploy.kubernetes`: build a Kubernetes control plane, and run a cluster of this machine for trying."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.kubernetes import definitions
from deploy.kubernetes.cluster import NODES, KubernetesCluster
from deploy.kubernetes.programs import GO_AT_LEAST, VERSION, set_up
from deploy.local.binaries import go
from deploy.local.errors import StackError

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
    parser = argparse.ArgumentParser(prog="python -m deploy.kubernetes", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    setup = commands.add_parser("setup", help="build etcd and the control plane, once per user")
    setup.set_defaults(run=_setup)
    up = commands.add_parser("up", help="run a cluster of this machine until Ctrl-C")
    up.add_argument("folder", type=Path, help="what the daemons keep, and the kubeconfig of clients")
    up.add_argument("--nodes", type=int, default=NODES)
    up.set_defaults(run=_up)
    return parser


def _setup(_: argparse.Namespace) -> int:
    print(f"definitions of resources  {definitions.set_up(go(GO_AT_LEAST))[0].parent}")
    print(f"Kubernetes {VERSION}  {set_up()['kube-apiserver'].parent}")
    return DONE


def _up(options: argparse.Namespace) -> int:
    with KubernetesCluster(options.folder, nodes=options.nodes) as cluster:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # after the daemons, which would inherit that
        print(f"{len(cluster.nodes)} nodes are ready: export KUBECONFIG={cluster.admin}", flush=True)
        signal.sigwait(ENDING)
    return DONE
