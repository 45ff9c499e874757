"""`python -m deploy.kubernetes`: build a Kubernetes control plane, and run a cluster of this machine for trying."""

import argparse
from collections.abc import Sequence

from deploy.command_line import DONE, CommandLine, until_ctrl_c
from deploy.kubernetes import definitions
from deploy.kubernetes.cluster import NODES, KubernetesCluster
from deploy.kubernetes.programs import GO_AT_LEAST, VERSION, set_up
from deploy.local.binaries import go


def main(arguments: Sequence[str] | None = None) -> int:
    command_line = CommandLine("deploy.kubernetes", __doc__)
    command_line.add("setup", _setup, does="build etcd and the control plane, once per user")
    folder = "what the daemons keep, and the kubeconfig of clients"
    up = command_line.add_up(_up, does="run a cluster of this machine", folder=folder)
    up.add_argument("--nodes", type=int, default=NODES)
    return command_line.run(arguments)


def _setup(_: argparse.Namespace) -> int:
    print(f"definitions of resources  {definitions.set_up(go(GO_AT_LEAST))[0].parent}")
    print(f"Kubernetes {VERSION}  {set_up()['kube-apiserver'].parent}")
    return DONE


def _up(options: argparse.Namespace) -> int:
    with KubernetesCluster(options.folder, nodes=options.nodes) as cluster:
        return until_ctrl_c(f"{len(cluster.nodes)} nodes are ready: export KUBECONFIG={cluster.admin}")
