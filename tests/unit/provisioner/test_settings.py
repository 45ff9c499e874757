"""The files that an operator writes for the provisioner."""

from dataclasses import replace
from decimal import Decimal

import pytest

from schemas.base import CapacityType, DeviceKind
from services.provisioner import settings
from services.provisioner.backends.dispatch import Backends
from services.provisioner.backends.protocol import BackendFailed
from services.provisioner.model import Pool
from services.provisioner.settings import parse_clusters, parse_pools

ON_SLURM = '[pools.a.slurm]\nfolder = "/shared"\npartition = "p"\n'


def parsed(text: str, *, gpus: int | None = None) -> dict[str, Pool]:
    return parse_pools(text, count_gpus=lambda: gpus)


def a_table(name: str = "a", **lines: object) -> str:
    """`lines` are as TOML has them; capacity type, nodes and device are there anyway."""
    whole = {"capacity_type": '"spot"', "nodes": 1, "device": '"cpu"'} | lines
    return "\n".join([f"[pools.{name}]", *(f"{key} = {value}" for key, value in whole.items())]) + "\n"


def test_pools_file_is_read():
    pool = parsed(a_table(nodes=2, devices_per_node=3, price_per_device_hour=0.10))["a"]
    assert (pool.capacity_type, pool.nodes, pool.devices_per_node) == (CapacityType.SPOT, 2, 3)
    assert (pool.price_per_device_hour, pool.capacity.price_per_hour) == (Decimal("0.1"), Decimal("0.3"))


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"capacity_type": '"cheap"'}, r"^pools\.a\.capacity_type: found 'cheap': Input should be 'spot'"),
        ({"colour": 1}, r"^pools\.a\.colour: found '1': Extra inputs are not permitted"),
        ({"nodes": -1}, r"^pools\.a\.nodes: found '-1': .* greater than or equal to 0"),
        ({"price_per_hour": 1}, "price_per_hour"),
        ({"tenants": '["No One"]'}, r"tenants\.0: found 'No One'"),
        ({"backend": '"slurm"'}, '^pools\\.a: backend is "slurm": expected the table slurm'),
    ],
)
def test_pools_file_with_a_fault_names_its_key_and_value(fault, named):
    with pytest.raises(ValueError, match=named):
        parsed(a_table(**fault))


def test_all_faults_of_a_pools_file_are_named_at_once():
    text = a_table("a", nodes=-1) + a_table("b").replace('device = "cpu"', "")
    with pytest.raises(
        ValueError, match=r"pools\.a\.nodes: .*; pools\.b\.device: found nothing, expected a value"
    ):
        parsed(text)


def test_a_pool_has_a_name_that_jobs_can_ask_for():
    with pytest.raises(ValueError, match=r"pools.*: found 'A b': String should match"):
        parsed(a_table("'A b'"))


def test_pools_file_says_what_the_nodes_compute_on():
    capacity = parsed(a_table(device='"cuda"', accelerator='"H100"', device_memory_gib=79.5))["a"].capacity
    assert (capacity.device, capacity.accelerator) == (DeviceKind.CUDA, "H100")
    assert capacity.device_memory_bytes == int(79.5 * 2**30)
    unsaid = parsed(a_table())["a"].capacity
    assert (unsaid.device, unsaid.accelerator, unsaid.device_memory_bytes) == (DeviceKind.CPU, "cpu", None)


def test_pools_file_says_for_whom_and_for_how_large_a_job():
    capacity = parsed(a_table(max_devices_per_job=4, tenants='["acme"]'))["a"].capacity
    assert (capacity.max_devices_per_job, capacity.tenants) == (4, ("acme",))


@pytest.mark.parametrize("lines", ["", 'device = "gpu"\n'])
def test_a_pool_that_does_not_say_its_device_is_no_pool(lines):
    """Its processes would take what they find, which is the CPU where a GPU died."""
    with pytest.raises(ValueError, match=r"pools\.a\.device"):
        parsed(f'[pools.a]\ncapacity_type = "spot"\nnodes = 1\n{lines}')


class TestGpus:
    @pytest.mark.parametrize(
        ("lines", "gpus", "devices"),
        [
            ({}, 8, 8),
            ({"nodes": 2}, 8, 4),
            ({"nodes": 0}, 8, 8),
            ({"first_device": 6}, 8, 2),
            ({"devices_per_node": 4}, 8, 4),
            ({}, None, 1),
            ({}, 0, 1),
            ({"device": '"cpu"'}, 8, 1),
        ],
    )
    def test_a_node_has_those_that_are_found_where_the_file_does_not_say(self, lines, gpus, devices):
        assert parsed(a_table(**{"device": '"cuda"'} | lines), gpus=gpus)["a"].devices_per_node == devices

    def test_they_are_counted_only_where_a_pool_of_this_machine_has_any(self):
        with pytest.raises(AssertionError, match="asked"):
            parse_pools(a_table(device='"cuda"'), count_gpus=asked)
        parse_pools(a_table(), count_gpus=asked)
        remote = a_table(device='"cuda"', devices_per_node=8, backend='"slurm"') + ON_SLURM
        assert parse_pools(remote, count_gpus=asked)["a"].devices_per_node == 8

    def test_two_pools_do_not_have_the_same(self):
        spot = a_table("spot", device='"cuda"', devices_per_node=4)
        other = {"device": '"cuda"', "devices_per_node": 4}
        with pytest.raises(
            ValueError, match=r"pools\.more has device 3, which is of pools\.spot: set first_device"
        ):
            parsed(spot + a_table("more", first_device=3, **other))
        assert parsed(spot + a_table("more", first_device=4, **other))["more"].free_on(0) == [4, 5, 6, 7]

    def test_one_that_is_not_found_is_logged(self, monkeypatch):
        lines = []
        monkeypatch.setattr(settings.log, "warning", lambda event, **fields: lines.append((event, fields)))
        parsed(a_table(device='"cuda"', devices_per_node=8), gpus=7)
        assert lines == [("pool has more GPUs than are counted", {"pool": "a", "expected": 8, "counted": 7})]


def asked() -> int:
    raise AssertionError("asked")


SLURM = '[pools.a]\ncapacity_type = "spot"\nnodes = 1\ndevice = "cpu"\n'


def test_pools_file_says_where_a_pool_is():
    text = SLURM + 'backend = "slurm"\n[pools.a.slurm]\nfolder = "/shared"\npartition = "p"\nflags = ["-x"]\n'
    assert parsed(text)["a"].backend == "slurm"
    pool = parse_clusters(text)["a"]
    assert (str(pool.folder), pool.partition, pool.flags) == ("/shared", "p", ("-x",))
    assert (parsed(SLURM)["a"].backend, parse_clusters(SLURM)) == ("local", {})


KUBERNETES = '[pools.a.kubernetes]\nnamespace = "ml"\nimage = "trainer"\nsecret = "runner"\n'


def test_pools_file_says_what_a_pools_pods_are():
    lines = 'node_selector = {gpu = "h100"}\ntolerations = [{key = "spot", tolerationSeconds = 3}]\n'
    text = SLURM + 'backend = "kubernetes"\n' + KUBERNETES + lines
    assert parsed(text)["a"].backend == "kubernetes"
    pool = parse_clusters(text)["a"]
    assert pool.place == (None, None, "ml", "retune")
    assert (pool.node_selector, pool.tolerations) == (
        {"gpu": "h100"},
        ({"key": "spot", "tolerationSeconds": 3},),
    )


def test_a_pool_of_a_cluster_may_leave_its_nodes_to_it():
    text = SLURM.replace("nodes = 1\n", "")
    on_slurm = 'backend = "slurm"\n[pools.a.slurm]\nfolder = "/shared"\npartition = "p"\n'
    pool = parsed(text + on_slurm)["a"]
    assert (pool.file_nodes, pool.nodes, pool.is_counted) == (None, 0, True)
    assert not parsed(SLURM)["a"].is_counted
    with pytest.raises(ValueError, match=r"pools\.a: nodes: found nothing, expected how many it has"):
        parsed(text)
    with pytest.raises(ValueError, match=r"pools\.a: nodes: found nothing, .* meet slurm\.constraint"):
        parsed(text + on_slurm + 'constraint = "h100"\n')


@pytest.mark.parametrize("line", ['installation = "My Own"', "fenced_after_seconds = 29", "gang = true"])
def test_what_no_pool_of_kubernetes_has_is_refused(line):
    with pytest.raises(ValueError, match=r"pools\.a\.kubernetes"):
        parsed(SLURM + 'backend = "kubernetes"\n' + KUBERNETES + line + "\n")


@pytest.mark.parametrize(
    "lines",
    [
        'backend = "slurm"\n',
        '[pools.a.slurm]\nfolder = "/shared"\npartition = "p"\n',
        'backend = "kubernetes"\n',
        KUBERNETES,
        'backend = "slurm"\n' + KUBERNETES,
    ],
)
def test_a_backend_and_its_table_come_together(lines):
    with pytest.raises(ValueError, match=r"pools\.a"):
        parsed(SLURM + lines)


class TestBackends:
    """Which backend has a pool's nodes."""

    def test_follows_from_the_pool(self):
        local, remote = object(), object()
        backends = Backends(local)
        pools = parsed(SLURM).values()
        gone = replace(next(iter(pools)), name="gone", backend="slurm")
        backends.use([*pools, gone], {"b": remote, "c": remote})
        assert (backends.of("a"), backends.of("b")) == (local, remote)
        assert backends.all() == [local, remote]
        for unknown in ("gone", "moon"):
            with pytest.raises(BackendFailed, match=f"pool {unknown} is not in the pools file"):
                backends.of(unknown)
