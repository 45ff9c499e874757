"""The nodes of leases at a cluster of this machine: one road for Slurm and Kubernetes, and what others do to it."""

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from deploy.kubernetes.cluster import NAMESPACE, KubernetesCluster
from deploy.local.stack import Stack
from deploy.slurm.cluster import SlurmCluster
from shared.env_file import read_env_file
from shared.processes.identity import Identity, marked
from tests.integration import kubernetes as kube
from tests.integration import slurm as queue
from tests.integration.provisioning import provisioner_env_of
from tests.integration.test_provisioner import POOLS

COMMON = """
[pools.cluster]
capacity_type = "spot"
device = "cpu"
nodes = {nodes}
devices_per_node = {devices}
price_per_device_hour = 0.10
device_memory_gib = {memory_gib}
cordon_after_failures = 2
backend = "{backend}"
"""
SLURM = """
[pools.cluster.slurm]
folder = "{folder}/cluster"
conf = "{conf}"
partition = "spot"
flags = ["--exclusive", "--cpus-per-task={{devices}}"]
fenced_after_seconds = 20
"""
KUBERNETES = """
[pools.cluster.kubernetes]
kubeconfig = "{kubeconfig}"
namespace = "{namespace}"
image = "retune/serving_controller"
secret = "{secret}"
accelerator_resource = "{device}"
lost_after_seconds = 1
fenced_after_seconds = 30
"""
DEVICE = "nvidia.com/gpu"
"""What Kubernetes calls them."""
DEVICES = 2
"""Of each machine in the pool."""
MEMORY_GIB = 0.5
"""Of each device: so little that a gate takes all devices of a machine."""
CLUSTERS = ("slurm", "kubernetes")
"""Parameters of a fixture that is `cluster_of`."""


class LeaseCluster(Protocol):
    """What a test asks of the cluster, whichever it is. Nodes have the names that the cluster has for them."""

    name: str
    """Which of `CLUSTERS` it is."""
    drain_source: str
    """What a notice says after `drained`."""
    queue_words: frozenset[str]
    """Beginnings of what a node waits for while `blocked`."""
    machines: tuple[str, ...]

    def pool(self, folder: Path, env_file: Path) -> str:
        """Return the table of the pool `cluster`. `folder`: what its machines share. `env_file`: variables for
        nodes."""

    def blocked(self) -> AbstractContextManager[None]:
        """Nothing starts meanwhile."""

    def running(self, name: str) -> list[str]:
        """Return the ids of what the cluster has of this node, one while it runs."""

    def machine(self, name: str) -> str:
        """Return the name of the machine that this node is on, empty while it has none."""

    def devices(self, name: str) -> int:
        """Return how many devices the cluster gives the node."""

    def drained(self, machine: str, name: str) -> AbstractContextManager[None]:
        """An administrator empties the machine, on which this node is."""

    def lost(self, machine: str) -> AbstractContextManager[None]:
        """The cluster does not hear of the machine any more; what runs there runs on."""


class OfSlurm:
    name = "slurm"
    drain_source = "drain"
    queue_words = frozenset({"Resources", "Priority", "None"})

    def __init__(self, slurm: SlurmCluster) -> None:
        self._slurm = slurm
        self.machines = tuple(slurm.nodes)

    def pool(self, folder: Path, env_file: Path) -> str:
        common = COMMON.format(
            nodes=len(self.machines), devices=DEVICES, memory_gib=MEMORY_GIB, backend="slurm"
        )
        return common + SLURM.format(folder=folder, conf=self._slurm.conf)

    def blocked(self) -> AbstractContextManager[None]:
        return queue.blocked(self._slurm, nodes=len(self.machines))

    def running(self, name: str) -> list[str]:
        return queue.running_jobs(self._slurm, name)

    def machine(self, name: str) -> str:
        return self._slurm.run("squeue", "--noheader", f"--name={name}", "--format=%N").strip()

    def devices(self, name: str) -> int:
        command = ("squeue", "--noheader", f"--name={name}", "--Format=cpus-per-task")
        return int(self._slurm.run(*command))

    @contextmanager
    def drained(self, machine: str, name: str) -> Iterator[None]:
        self._slurm.run("scontrol", "update", f"NodeName={machine}", "State=DRAIN", "Reason=test")
        try:
            yield
        finally:
            self._slurm.run("scontrol", "update", f"NodeName={machine}", "State=RESUME")

    @contextmanager
    def lost(self, machine: str) -> Iterator[None]:
        self._slurm.kill(machine)
        try:
            yield
        finally:
            self._slurm.start_node(machine)


class OfKubernetes:
    name = "kubernetes"
    drain_source = "eviction"
    queue_words = frozenset({"", "0/3 nodes are available"})

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self.machines = tuple(cluster.nodes)

    def pool(self, folder: Path, env_file: Path) -> str:
        secret = f"runner-{folder.name}".replace("_", "-")
        kube.put_secret(self._cluster, secret, read_env_file(env_file))
        place = {
            "kubeconfig": self._cluster.provisioner,
            "namespace": NAMESPACE,
            "secret": secret,
            "device": DEVICE,
        }
        common = COMMON.format(
            nodes=len(self.machines), devices=DEVICES, memory_gib=MEMORY_GIB, backend="kubernetes"
        )
        return common + KUBERNETES.format(**place)

    def blocked(self) -> AbstractContextManager[None]:
        return kube.cordoned(self._cluster, *self.machines)

    def running(self, name: str) -> list[str]:
        return [pod["metadata"]["name"] for pod in kube.pods_of(self._cluster, name)]

    def machine(self, name: str) -> str:
        machines = [pod["spec"].get("nodeName", "") for pod in kube.pods_of(self._cluster, name)]
        return next(filter(None, machines), "")

    def devices(self, name: str) -> int:
        [pod] = kube.pods_of(self._cluster, name)
        [container] = pod["spec"]["containers"]
        return int(container["resources"]["limits"][DEVICE])

    @contextmanager
    def drained(self, machine: str, name: str) -> Iterator[None]:
        with kube.cordoned(self._cluster, machine):
            kube.evict(self._cluster, kube.pod_of(self._cluster, name, 0))
            yield

    @contextmanager
    def lost(self, machine: str) -> Iterator[None]:
        self._cluster.kill(machine)
        try:
            yield
        finally:
            self._cluster.start_node(machine)


def cluster_of(request: pytest.FixtureRequest) -> LeaseCluster:
    """Return the cluster that the parameter of a fixture names."""
    real = request.getfixturevalue(request.param)
    return OfSlurm(real) if request.param == "slurm" else OfKubernetes(real)


def provisioner_env_with(
    stack: Stack, folder: Path, cluster: LeaseCluster, **variables: str
) -> dict[str, str]:
    """Write the pools, the cluster's among them, and the variables of nodes; return the provisioner's variables."""
    env = provisioner_env_of(stack, folder, POOLS)
    with (folder / "runner.env").open("a") as file:
        file.writelines(f"{name}='{value}'\n" for name, value in variables.items())
    with (folder / "pools.toml").open("a") as file:
        file.write(cluster.pool(folder, folder / "runner.env"))
    return env


def node_process(name: str, *, module: str) -> Identity:
    """Return the process of the node's program, not what it has started."""
    [node] = [each for each in marked(mark_of(name)) if module in command_of(each)]
    return node


def mark_of(name: str) -> str:
    return f"RUNNER_NODE_ID={name}-n0"


def kill_all_of(name: str) -> None:
    processes = list(marked(mark_of(name)))
    assert processes, f"nothing runs on node {name}-n0"
    for process in processes:
        process.signal_alone(signal.SIGKILL)


def command_of(process: Identity) -> list[str]:
    return Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
