"""Environment of the provisioner, and the file of its pools."""

import tomllib
from collections.abc import Callable, Iterable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsConfigDict

from schemas.base import LABEL, CapacityType, DeviceKind, TenantName, Usd
from schemas.specification import Name
from services.provisioner.model import LOCAL, Pool
from shared.log import get_logger
from shared.settings import ServiceSettings

log = get_logger(__name__)

MAX_SHOWN = 80
"""Characters of a wrong value that an error shows."""


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="PROVISIONER_", frozen=True)

    pools_file: Path
    """TOML, one table `[pools.<name>]` each: capacity_type, nodes, device, accelerator, devices_per_node,
    device_memory_gib, price_per_device_hour, max_devices_per_job, tenants, first_device, cordon_after_failures,
    backend, and the backend's own table."""
    nodes_dir: Path
    """Where the local backend keeps a folder for each node."""
    runner_env_file: Path
    """Lines of NAME=value for the environment of every runner: its addresses and keys."""
    node_keys_secret: SecretStr
    """The keys by which nodes prove their claims follow from it; nobody else has it. At least 32 characters. Nodes
    that are being created when it changes fail once, as infra."""
    logs_retention: Annotated[timedelta, Field(ge=timedelta(days=30))] = timedelta(days=30)
    """How long folders of ended attempts are kept. Their names are used up as long as a message may come again."""
    count_every: Annotated[timedelta, Field(ge=timedelta(seconds=1))] = timedelta(seconds=30)
    """How often clusters are asked how many machines take work, for pools that do not say their nodes."""


class SlurmPool(BaseModel):
    """Table `[pools.<name>.slurm]`: where the pool's nodes are in Slurm, and what its jobs are submitted with."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    folder: Path
    """Folder that the provisioner and all nodes see under this path: what is asked of each node, and how it ended."""
    partition: str
    conf: Path | None = None
    """slurm.conf of the cluster; None: where Slurm's commands look for it."""
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    flags: tuple[str, ...] = ()
    """More arguments of sbatch; `{devices}` in one stands for the number of devices of each node."""
    srun_flags: tuple[str, ...] = ()
    """More arguments of the srun that starts the runners."""
    env_file: Path | None = None
    """File of the runners' addresses and keys, read on each node; None: the path of PROVISIONER_RUNNER_ENV_FILE."""
    work_dir: Path | None = None
    """Folder on each node for what runners work with; None: in `folder`."""
    fenced_after_seconds: Annotated[float, Field(gt=0)] = 90.0
    """Time after which a runner that nobody reaches has ended itself, once its grant is withdrawn: 15 s, and the
    time for which a node may take a removed file of `folder` for there."""


class KubernetesPool(BaseModel):
    """Table `[pools.<name>.kubernetes]`: where the pool's nodes are in Kubernetes, and what its pods are made of."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    namespace: str
    image: str
    """Image that has the platform's code at the paths that the provisioner has it at, as `trainer` does."""
    secret: str
    """Name of the namespace's secret that has the runners' addresses and keys, one for each variable."""
    kubeconfig: Path | None = None
    """File that says where the cluster is and who asks; None: inside of it, by the account of the pod."""
    context: str | None = None
    """Context of the kubeconfig; None: the current one."""
    installation: Annotated[str, Field(pattern=LABEL)] = "retune"
    """Label of all that is created, where several installations share the namespace."""
    queue: str | None = None
    """LocalQueue of Kueue that admits the jobs; None: they run when the scheduler has room."""
    priority_class: str | None = None
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, str | int], ...] = ()
    accelerator_resource: str | None = None
    """Name of the devices as Kubernetes counts them, such as nvidia.com/gpu; None: nothing is asked for."""
    requests: dict[str, str] = {}
    """More that each pod asks for: cpu, memory."""
    limits: dict[str, str] = {}
    image_pull_secret: str | None = None
    shared_memory: str = "8Gi"
    """Most memory that training processes of a pod share; it counts as the pod's."""
    lost_after_seconds: NonNegativeInt = 30
    """How long a pod stays on a machine that nobody hears of, after Kubernetes has noticed that."""
    fenced_after_seconds: Annotated[float, Field(ge=30)] = 300.0
    """Time without Kafka after which a runner ends itself, and 15 s more: nodes that nobody reaches are released
    then."""
    gang_wait_seconds: Annotated[float, Field(gt=0)] = 600.0
    """How long a part of a gang holds its machines and waits for the rest, before the attempt is given up."""

    @property
    def place(self) -> tuple[Path | None, str | None, str, str]:
        return self.kubeconfig, self.context, self.namespace, self.installation


ClusterPool = SlurmPool | KubernetesPool


class PoolEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    capacity_type: CapacityType
    nodes: NonNegativeInt | None = None
    """Machines, each with `devices_per_node` devices. None: those of its cluster that take work."""
    devices_per_node: PositiveInt | None = None
    """None: the GPUs that are counted, shared out among the nodes; 1 on a CPU, or where they cannot be counted."""
    price_per_device_hour: Usd = Decimal(0)
    """US dollars for an hour of one device; a job pays for those that it holds."""
    device: DeviceKind
    """Kind of device that its nodes compute on; a training process that does not have it ends as `infra`."""
    accelerator: Name | None = None
    """Kind of accelerator in a word such as H100, by which jobs name it. None: the kind of device."""
    device_memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Memory of each device; jobs that need more are refused at submit."""
    max_devices_per_job: PositiveInt | None = None
    """Most devices that a job may take; None: all."""
    tenants: tuple[TenantName, ...] = ()
    """Tenants whose jobs it takes; none: every tenant's."""
    first_device: NonNegativeInt = 0
    """Number of this machine's first device that is the pool's, where several pools share its GPUs."""
    cordon_after_failures: NonNegativeInt = 3
    """Failures of a machine within a day, of two jobs at least, after which nothing more starts there; 0: never."""
    backend: Literal["local", "slurm", "kubernetes"] = "local"
    """What has its nodes: this machine, or a cluster that the table of the same name describes."""
    slurm: SlurmPool | None = None
    kubernetes: KubernetesPool | None = None

    @model_validator(mode="after")
    def _has_its_table(self) -> Self:
        tables = {"slurm": self.slurm, "kubernetes": self.kubernetes}
        for name, table in tables.items():
            if (self.backend == name) != (table is not None):
                raise ValueError(
                    f'backend is "{self.backend}": expected the table {name} with backend = "{name}" alone'
                )
        return self

    @model_validator(mode="after")
    def _says_its_nodes(self) -> Self:
        if self.nodes is None and self.backend == LOCAL:
            raise ValueError("nodes: found nothing, expected how many it has")
        if self.nodes is None and self.slurm and self.slurm.constraint:
            raise ValueError(
                "nodes: found nothing, expected how many meet slurm.constraint: Slurm does not say"
            )
        return self

    @property
    def cluster(self) -> ClusterPool | None:
        """Its backend's own table; None of a pool of this machine."""
        return self.slurm or self.kubernetes

    @property
    def device_memory_bytes(self) -> int | None:
        return None if self.device_memory_gib is None else int(self.device_memory_gib * 2**30)

    @property
    def has_own_gpus(self) -> bool:
        """Whether its devices are GPUs of this machine; those of other backends have numbers of their own."""
        return self.backend == LOCAL and self.device is DeviceKind.CUDA

    def as_pool(self, name: str, gpus: int | None) -> Pool:
        """`gpus`: those of this machine; None: they cannot be counted, or it has no need of them."""
        devices = self.devices_per_node
        if devices is None:
            devices = max(1, ((gpus or 0) - self.first_device) // max(1, self.nodes or 0))
        return Pool(
            name,
            self.capacity_type,
            self.nodes or 0,
            devices,
            self.price_per_device_hour,
            file_nodes=self.nodes,
            device=self.device,
            device_memory_bytes=self.device_memory_bytes,
            accelerator=self.accelerator or self.device.value,
            first_device=self.first_device,
            max_devices_per_job=self.max_devices_per_job,
            tenants=self.tenants,
            backend=self.backend,
            cordon_after_failures=self.cordon_after_failures,
        )


class PoolsFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    pools: dict[Name, PoolEntry]


def parse_pools(text: str, *, count_gpus: Callable[[], int | None]) -> dict[str, Pool]:
    """Read the pools from TOML. Raises ValueError with all that is wrong: each key, what is there, what may be."""
    entries = _entries(text)
    gpus = count_gpus() if any(entry.has_own_gpus for entry in entries.values()) else None
    pools = {
        name: entry.as_pool(name, gpus if entry.has_own_gpus else None) for name, entry in entries.items()
    }
    _require_own_gpus([pools[name] for name, entry in entries.items() if entry.has_own_gpus], gpus)
    return pools


def parse_clusters(text: str) -> dict[str, ClusterPool]:
    """Read of the same TOML the tables of the pools that are not of this machine, by pool."""
    return {name: entry.cluster for name, entry in _entries(text).items() if entry.cluster is not None}


def _entries(text: str) -> dict[str, PoolEntry]:
    try:
        return PoolsFile.model_validate(tomllib.loads(text, parse_float=Decimal)).pools
    except ValidationError as error:
        raise ValueError("; ".join(map(_problem, error.errors()))) from error


def _problem(error: ErrorDetails) -> str:
    where = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"{where}: found nothing, expected a value"
    if error["type"] == "value_error":
        return f"{where}: {error['ctx']['error']}"
    return f"{where}: found {str(error['input'])[:MAX_SHOWN]!r}: {error['msg']}"


def _require_own_gpus(pools: Iterable[Pool], gpus: int | None) -> None:
    """Raise ValueError where two pools have one GPU of this machine; log where a pool has more than are counted."""
    owners: dict[int, str] = {}
    for pool in pools:
        for device in range(pool.first_device, pool.first_device + pool.nodes * pool.devices_per_node):
            if (owner := owners.setdefault(device, pool.name)) != pool.name:
                raise ValueError(
                    f"pools.{pool.name} has device {device}, which is of pools.{owner}: set first_device, or fewer "
                    "nodes or devices_per_node"
                )
    if gpus is not None and owners and max(owners) >= gpus:
        pool_name = owners[max(owners)]
        log.warning(
            "pool has more GPUs than are counted", pool=pool_name, expected=max(owners) + 1, counted=gpus
        )
