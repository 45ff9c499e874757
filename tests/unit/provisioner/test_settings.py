"""The files that an operator writes for the provisioner."""

from dataclasses import replace
from decimal import Decimal

import pytest

from schemas.base import CapacityType, DeviceKind
from services.provisioner.backends.dispatch import Backends
from services.provisioner.backends.protocol import BackendFailed
from services.provisioner.settings import parse_pools, parse_slurm


def test_pools_file_is_read():
    text = '[pools.a]\ncapacity_type = "spot"\nnodes = 2\ndevice = "cpu"\ndevices_per_node = 3\nprice_per_hour = 0.10\n'
    pool = parse_pools(text)["a"]
    assert (pool.capacity_type, pool.nodes, pool.devices_per_node) == (CapacityType.SPOT, 2, 3)
    assert pool.price_per_hour == Decimal("0.10")


@pytest.mark.parametrize(
    ("line", "named"),
    [('capacity_type = "cheap"', "capacity_type"), ("colour = 1", "colour"), ("nodes = -1", "nodes")],
)
def test_pools_file_with_a_fault_names_it(line, named):
    whole = ('capacity_type = "spot"', "nodes = 1", 'device = "cpu"')
    rest = [other for other in whole if other.split()[0] != line.split()[0]]
    with pytest.raises(ValueError, match=named):
        parse_pools("\n".join(["[pools.a]", line, *rest]))


def test_pools_file_says_what_the_nodes_compute_on():
    text = '[pools.a]\ncapacity_type = "spot"\nnodes = 1\ndevice = "cuda"\ndevice_memory_gib = 79.5\n'
    capacity = parse_pools(text)["a"].capacity
    assert (capacity.device, capacity.device_memory_bytes) == (DeviceKind.CUDA, int(79.5 * 2**30))
    unsaid = parse_pools('[pools.a]\ncapacity_type = "spot"\nnodes = 1\ndevice = "cpu"\n')["a"].capacity
    assert (unsaid.device, unsaid.device_memory_bytes) == (DeviceKind.CPU, None)


@pytest.mark.parametrize("lines", ["", 'device = "gpu"\n'])
def test_a_pool_that_does_not_say_its_device_is_no_pool(lines):
    """Its processes would take what they find, which is the CPU where a GPU died."""
    with pytest.raises(ValueError, match=r"pools\.a\.device"):
        parse_pools(f'[pools.a]\ncapacity_type = "spot"\nnodes = 1\n{lines}')


SLURM = '[pools.a]\ncapacity_type = "spot"\nnodes = 1\ndevice = "cpu"\n'


def test_pools_file_says_where_a_pool_is():
    text = SLURM + 'backend = "slurm"\n[pools.a.slurm]\nfolder = "/shared"\npartition = "p"\nflags = ["-x"]\n'
    assert parse_pools(text)["a"].backend == "slurm"
    pool = parse_slurm(text)["a"]
    assert (str(pool.folder), pool.partition, pool.flags) == ("/shared", "p", ("-x",))
    assert (parse_pools(SLURM)["a"].backend, parse_slurm(SLURM)) == ("local", {})


@pytest.mark.parametrize(
    "lines", ['backend = "slurm"\n', '[pools.a.slurm]\nfolder = "/shared"\npartition = "p"\n']
)
def test_a_backend_and_its_table_come_together(lines):
    with pytest.raises(ValueError, match=r"pools\.a"):
        parse_pools(SLURM + lines)


class TestBackends:
    """Which backend has a pool's nodes."""

    def test_follows_from_the_pool(self):
        local, remote = object(), object()
        backends = Backends(local)
        pools = parse_pools(SLURM).values()
        gone = replace(next(iter(pools)), name="gone", backend="slurm")
        backends.use([*pools, gone], {"b": remote, "c": remote})
        assert (backends.of("a"), backends.of("b")) == (local, remote)
        assert backends.all() == [local, remote]
        for unknown in ("gone", "moon"):
            with pytest.raises(BackendFailed, match=f"pool {unknown} is not in the pools file"):
                backends.of(unknown)
