"""What the provisioner does on a message, on a timer, and with the backend."""

from datetime import timedelta
from pathlib import Path

from schemas.job import JobEvaluating, JobScheduled, JobStageCompleted, JobStopping
from schemas.node import (
    CordonMachine,
    DrainNode,
    LeaseDevices,
    PreemptNode,
    ReturnDevices,
    SetPoolCapacity,
    UncordonMachine,
)
from schemas.training import TrainingFailed, TrainingStarted
from services.provisioner.backends.dispatch import Backends
from services.provisioner.handlers import lease_nodes, leases, machines, messages
from services.provisioner.handlers.apply import CreateNodes, Due, EndNode, NotifyNode, ReleaseNodes
from services.provisioner.handlers.cluster import Cluster, nothing
from services.provisioner.handlers.lease_nodes import LeaseNodes
from services.provisioner.handlers.leases import StartLeaseNode, StopLeaseNode
from services.provisioner.handlers.pools import Connect, Pools
from services.provisioner.node_keys import NodeKeys
from shared.service import Service

RESYNC = timedelta(seconds=1)
SWEEP = timedelta(seconds=15)
PARALLEL = 2
PARALLEL_ENDS = 8
"""An end waits for the grace of its processes and needs no core."""


def register(
    service: Service,
    backends: Backends,
    node_keys: NodeKeys,
    *,
    pools_file: Path,
    connect: Connect,
    count_every: timedelta,
) -> None:
    """`connect`: returns the backends of the pools that are not of this machine. `count_every`: how often the
    machines of clusters are counted."""
    _register_messages(service)
    _register_pools(service, Pools(service, pools_file, backends, connect), count_every)
    _register_machines(service)
    _register_leases(service, LeaseNodes(service, backends, node_keys))
    _register_cluster(service, Cluster(service, backends, node_keys, lease_nodes.observed))


def _register_messages(service: Service) -> None:
    service.on(JobScheduled, messages.job_scheduled)
    service.on(JobStopping, messages.job_stopping)
    service.on(JobEvaluating, messages.attempt_completed)
    service.on(JobStageCompleted, messages.attempt_completed)
    service.on(TrainingStarted, messages.training_started)
    service.on(PreemptNode, messages.preempt_node)
    service.on_timer(Due, messages.due)


def _register_pools(service: Service, pools: Pools, count_every: timedelta) -> None:
    service.on_start(pools.read)
    service.on(DrainNode, pools.drain_node)
    service.on(SetPoolCapacity, pools.set_capacity)
    service.every(count_every, pools.count, singleton=True)


def _register_machines(service: Service) -> None:
    service.on(TrainingFailed, machines.training_failed)
    service.on(CordonMachine, machines.cordon_machine)
    service.on(UncordonMachine, machines.uncordon_machine)


def _register_leases(service: Service, nodes: LeaseNodes) -> None:
    service.on(LeaseDevices, leases.lease_devices)
    service.on(ReturnDevices, leases.return_devices)
    service.on_timer(leases.LeaseDue, leases.lease_due)
    service.on_task(
        StartLeaseNode, work=nodes.start, done=nodes.started, failed=nodes.start_failed, concurrency=PARALLEL
    )
    service.on_task(
        StopLeaseNode, work=nodes.stop, done=nodes.stopped, failed=nodes.again, concurrency=PARALLEL_ENDS
    )


def _register_cluster(service: Service, cluster: Cluster) -> None:
    service.on_task(
        CreateNodes,
        work=cluster.create,
        done=cluster.created,
        failed=cluster.create_failed,
        concurrency=PARALLEL,
    )
    service.on_task(
        ReleaseNodes,
        work=cluster.release,
        done=cluster.released,
        failed=cluster.again,
        concurrency=PARALLEL_ENDS,
    )
    service.on_task(NotifyNode, work=cluster.notify, done=nothing, failed=cluster.again, concurrency=PARALLEL)
    service.on_task(EndNode, work=cluster.end, done=nothing, failed=cluster.again, concurrency=PARALLEL_ENDS)
    service.every(RESYNC, cluster.follow)
    service.every(SWEEP, cluster.sweep, singleton=True)
