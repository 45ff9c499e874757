"""The platform from its manifests: bootstrap, twelve services and the nodes of a job are pods of Kubernetes."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.bootstrap.rights import kafka_users, s3_users
from deploy.bootstrap.settings import variable
from deploy.bootstrap.site import KAFKA_SUPER_USER, POSTGRES_SUPER_USER, S3_ROOT
from deploy.kubernetes.cluster import NAMESPACE, KubernetesCluster
from deploy.kubernetes.passwords import NAMESPACE as PLATFORM
from deploy.local.environment import nodes_listener, runner_env, threads_of_a_process
from deploy.local.errors import MissingPart
from deploy.local.site import site
from deploy.local.stack import Stack
from deploy.local.state import LOOPBACK
from schemas.topics import SERVICES
from tests.architecture.manifests import container, of_kind, service_of
from tests.chaos.scale import Scale, scale
from tests.e2e import material
from tests.e2e.conftest import Platform, with_models
from tests.integration.kubectl import Kubectl, Manifest, write_overlay
from tests.integration.kubernetes import put_secret
from tests.waiting import until

pytestmark = [
    pytest.mark.stack,
    pytest.mark.torch,
    pytest.mark.skipif(scale() is Scale.CHANGE, reason="a whole platform of its own: at night"),
]

POOLS = """
[pools.cluster]
capacity_type = "on-demand"
device = "cpu"
nodes = 2
price_per_device_hour = 0.10
backend = "kubernetes"

[pools.cluster.kubernetes]
kubeconfig = "{kubeconfig}"
namespace = "{namespace}"
image = "retune-provisioner"
secret = "runner"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    try:
        cluster = KubernetesCluster(tmp_path_factory.mktemp("kubernetes"))
    except MissingPart as missing:
        pytest.skip(str(missing))
    with cluster:
        yield cluster


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Kafka, Postgres and S3 alone, without a service or its tables."""
    stack = Stack(tmp_path_factory.mktemp("parts") / "state", tenants=("demo",), services=())
    await stack.up()
    yield stack
    await stack.down()


@pytest.fixture(scope="module")
def kubectl(cluster: KubernetesCluster, stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """The base, applied, with addresses and passwords of the stack, one pod of each service."""
    kubectl = Kubectl(cluster)
    kubectl("create", "namespace", PLATFORM)
    put_secret(cluster, "passwords", _passwords(stack), namespace=PLATFORM)
    put_secret(cluster, "runner", runner_env(stack.state))
    kubectl.apply(_volumes(tmp_path_factory.mktemp("volumes")))
    overlay = write_overlay(
        tmp_path_factory.mktemp("overlay"),
        replicas=[{"name": name, "count": 1} for name in of_kind("StatefulSet")],
        patches=[
            *_settings(stack, cluster),
            *(_of_this_machine(each, stack) for each in of_kind("StatefulSet").values()),
        ],
    )
    kubectl.apply(kubectl.rendered(overlay))
    return kubectl


async def test_every_pod_becomes_ready_by_its_probes_and_a_job_ends_as_a_model_that_answers(
    kubectl: Kubectl, stack: Stack, tmp_path: Path
):
    await until(lambda: _are_ready(kubectl), every=1.0)
    [bootstrap] = [job for job in kubectl.items("jobs") if job["metadata"]["name"] == "bootstrap"]
    assert bootstrap["status"]["succeeded"] == 1
    async with with_models(stack, tmp_path) as platform:
        job = await _run(platform)
    records = [each["metadata"]["name"] for each in kubectl.items("configmaps", NAMESPACE)]
    assert f"a-{job['id']}-e1" in records


async def test_a_rollout_replaces_a_pod_and_waits_until_the_next_one_is_ready(kubectl: Kubectl):
    await until(lambda: _are_ready(kubectl), every=1.0)
    before = _pod(kubectl, "scheduler-0")
    scheduler = (f"--namespace={PLATFORM}", "statefulset/scheduler")
    await asyncio.to_thread(kubectl, "rollout", "restart", *scheduler)
    await asyncio.to_thread(kubectl, "rollout", "status", *scheduler, "--timeout=120s")
    after = _pod(kubectl, "scheduler-0")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["ready"] is True


async def _run(platform: Platform) -> dict[str, Any]:
    """A job whose nodes are pods, from its files to a chat with what it trained."""
    job = await platform.finished(await platform.submit(resources={"pool": "cluster"}))
    assert job["status"] == "succeeded", platform.retune("jobs", "events", job["id"])
    thing = material.THINGS[310]
    assert await platform.answer(job["fine_tuned_model"], f"What colour is the {thing}?") == material.ANSWER
    return job


def _are_ready(kubectl: Kubectl) -> bool:
    ready = {
        each["metadata"]["name"]: each.get("status", {}).get("readyReplicas")
        for each in kubectl.items("statefulsets")
    }
    return len(ready) == len(SERVICES) and set(ready.values()) == {1}


def _pod(kubectl: Kubectl, name: str) -> Manifest:
    return next(each for each in kubectl.items("pods") if each["metadata"]["name"] == name)


def _passwords(stack: Stack) -> dict[str, str]:
    names = [
        *("admin-key", "kafka-users", "webhooks", "node-keys", "api-key:demo"),
        *(f"kafka:{user}" for user in (KAFKA_SUPER_USER, *kafka_users(("demo",)))),
        *(f"postgres:{role}" for role in (POSTGRES_SUPER_USER, "operator", *SERVICES)),
        *(f"s3:{user}" for user in (S3_ROOT, *s3_users())),
    ]
    return {variable(name): stack.state.secret(name) for name in names}


def _volumes(folder: Path) -> list[Manifest]:
    """What a cluster's storage would bring for the claims of the base."""
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"volume-{number}"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": [mode],
                "hostPath": {"path": str(folder / str(number))},
            },
        }
        for number, mode in enumerate(("ReadWriteMany", "ReadWriteOnce"))
    ]


def _settings(stack: Stack, cluster: KubernetesCluster) -> list[Manifest]:
    """Patches of the ConfigMaps. The built-in suites would take the gate minutes."""
    here = site(stack.state)
    platform = {
        "KAFKA_BOOTSTRAP": here.kafka_bootstrap,
        "POSTGRES_ADDRESS": here.postgres_address,
        "S3_ENDPOINT": here.s3_endpoint,
        "NODES_S3_ENDPOINT": here.s3_endpoint,
        "KAFKA_REPLICATION_FACTOR": "1",
        "KAFKA_MIN_INSYNC_REPLICAS": "1",
    }
    pools = {"pools.toml": POOLS.format(kubeconfig=cluster.provisioner, namespace=NAMESPACE)}
    suites = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "suites", "namespace": PLATFORM},
        "$patch": "delete",
    }
    patches = [_config_map("platform", platform), _config_map("pools", pools), suites]
    return [{"patch": json.dumps(each)} for each in patches]


def _config_map(name: str, data: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": PLATFORM},
        "data": data,
    }


def _of_this_machine(stateful_set: Manifest, stack: Stack) -> Manifest:
    """A patch: all pods share the ports of one machine, where nobody else should reach them."""
    name = service_of(stateful_set)
    port, place = stack.state.port(name), "/spec/template/spec/containers/0"
    variables = [entry["name"] for entry in container(stateful_set)["env"]]
    values = {f"{name.upper()}_HTTP_HOST": LOOPBACK, f"{name.upper()}_HTTP_PORT": str(port)}
    ports = [port]
    if f"{name.upper()}_NODES_PORT" in variables:
        ports.append(stack.state.port(nodes_listener(name)))
        values[f"{name.upper()}_NODES_PORT"] = str(ports[-1])
    patch = [
        {"op": "replace", "path": f"{place}/env/{variables.index(variable)}/value", "value": value}
        for variable, value in values.items()
    ]
    patch += [
        {"op": "replace", "path": f"{place}/ports/{number}/containerPort", "value": each}
        for number, each in enumerate(ports)
    ]
    if name == "evaluator":
        threads = {"name": "EVALUATOR_SCORING_THREADS", "value": str(threads_of_a_process())}
        patch.append({"op": "add", "path": f"{place}/env/-", "value": threads})
    target = {"kind": "StatefulSet", "name": stateful_set["metadata"]["name"]}
    return {"target": target, "patch": json.dumps(patch)}
