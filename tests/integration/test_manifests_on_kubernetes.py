"""A real API server takes the platform's manifests: all fields are known, all pods admitted, rights and budgets hold."""

from collections.abc import Iterator
from itertools import product
from os.path import relpath
from pathlib import Path
from typing import Any

import pytest

from deploy.images.passwords import complete
from deploy.kubernetes import definitions, passwords
from deploy.kubernetes.cluster import PROVISIONER, KubernetesCluster
from deploy.kubernetes.passwords import NAMESPACE, POOLS
from deploy.local.errors import MissingPart
from schemas.topics import SERVICES
from tests.architecture.manifests import COMPONENTS, EXAMPLE, of_kind
from tests.architecture.manifests import POOLS as MANIFESTS_OF_POOLS
from tests.architecture.source import ROOT
from tests.integration.kubectl import Kubectl, Manifest, Refused, write_overlay
from tests.integration.kubernetes import cordoned
from tests.waiting import until

ACCOUNT = f"system:serviceaccount:{NAMESPACE}"
ASKED = {
    "": (
        "configmaps",
        "pods",
        "pods/exec",
        "pods/eviction",
        "secrets",
        "services",
        "serviceaccounts/token",
        "nodes",
    ),
    "batch": ("jobs", "cronjobs"),
    "apps": ("statefulsets",),
    "rbac.authorization.k8s.io": ("roles", "rolebindings"),
    "scheduling.k8s.io": ("podgroups",),
}
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """One on which nothing is placed: pods are created and admitted, and wait."""
    try:
        cluster = KubernetesCluster(tmp_path_factory.mktemp("kubernetes"), nodes=1)
        definitions.definitions()
    except MissingPart as missing:
        pytest.skip(str(missing))
    with cluster, cordoned(cluster, *cluster.nodes):
        yield cluster


@pytest.fixture(scope="module")
async def kubectl(cluster: KubernetesCluster) -> Kubectl:
    """With the operators' definitions of their resources, and the secrets that the command makes."""
    kubectl = Kubectl(cluster)
    for path in definitions.definitions():
        kubectl("create", f"--filename={path}")
    await until(lambda: _are_served(kubectl), every=0.2)
    known = complete((ROOT / "docker-compose.yml").read_text(), "")
    values = dict(line.split("=", 1) for line in known.splitlines())
    kubectl("create", "namespace", NAMESPACE)
    kubectl.apply([passwords.secrets(values, passwords.parser().parse_args([]))])
    return kubectl


def _are_served(kubectl: Kubectl) -> bool:
    """`kubectl wait` gives up where a definition has no conditions yet (kubernetes/kubernetes#66439)."""
    return all(
        any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
        for definition in kubectl.items("customresourcedefinitions")
        for conditions in [definition["status"]["conditions"] or ()]
    )


@pytest.fixture(scope="module")
def example(kubectl: Kubectl) -> list[Manifest]:
    return kubectl.rendered(EXAMPLE)


@pytest.fixture(scope="module")
def applied(kubectl: Kubectl, example: list[Manifest]) -> list[str]:
    return kubectl.apply(example)


def named(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] == kind}


class TestTheExample:
    def test_every_object_is_accepted_strictly(self, example, applied):
        assert len(applied) == len(example)
        for service in SERVICES:
            assert f"statefulset.apps/{service.replace('_', '-')}" in applied
        for each in ("kafka.kafka.strimzi.io/kafka", "kafkanodepool.kafka.strimzi.io/broker"):
            assert each in applied
        assert "cluster.postgresql.cnpg.io/postgres" in applied
        assert "podmonitor.monitoring.coreos.com/retune" in applied
        assert sum(each.startswith("scaledobject.keda.sh/") for each in applied) == 6

    def test_only_what_is_of_nodes_is_in_the_pools_namespace(self, example):
        kinds = {
            namespace: {each["kind"] for each in example if each["metadata"].get("namespace") == namespace}
            for namespace in (None, POOLS)
        }
        assert kinds[None] == {"Namespace", "ClusterRole", "ClusterRoleBinding"}
        assert kinds[POOLS] == {"ServiceAccount", "Role", "RoleBinding", "NetworkPolicy"}

    def test_keda_has_the_number_of_pods_to_itself(self, example):
        sets = named(example, "StatefulSet")
        free = {name for name, each in sets.items() if "replicas" not in each["spec"]}
        assert free == set(named(example, "ScaledObject"))

    def test_bootstrap_logs_in_where_the_brokers_user_is_known(self, example):
        [container] = named(example, "Job")["bootstrap"]["spec"]["template"]["spec"]["containers"]
        port = named(example, "Kafka")["kafka"]["spec"]["kafka"]["listeners"][1]["port"]
        variables = {entry["name"]: entry["value"] for entry in container["env"]}
        assert variables == {
            "KAFKA_BOOTSTRAP": f"kafka-kafka-bootstrap:{port}",
            "KAFKA_MECHANISM": "PLAIN",
        }

    def test_images_are_those_of_the_registry(self, example):
        images = {
            container["image"]
            for kind in ("StatefulSet", "Job")
            for each in named(example, kind).values()
            for container in each["spec"]["template"]["spec"]["containers"]
        }
        assert {image for image in images if not image.startswith("registry.internal/retune/")} == {
            of_kind("StatefulSet", COMPONENTS / "versitygw")["s3"]["spec"]["template"]["spec"]["containers"][
                0
            ]["image"]
        }

    async def test_every_pod_is_created_and_admitted(self, kubectl, applied):
        def are_there() -> bool:
            sets = kubectl.items("statefulsets")
            return len(sets) == 13 and all(
                each.get("status", {}).get("replicas") == each["spec"]["replicas"] for each in sets
            )

        await until(are_there, every=0.5)
        jobs = {pod["metadata"]["labels"].get("retune/job") for pod in kubectl.items("pods")}
        assert {"bootstrap", "suites"} <= jobs
        refused = [event["message"] for event in kubectl.items("events") if event["reason"] == "FailedCreate"]
        assert refused == []

    async def test_a_pod_knows_which_of_its_service_it_is(self, kubectl, applied):
        numbers = {
            pod["metadata"]["name"]: pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"]
            for pod in kubectl.items("pods")
            if "retune/service" in pod["metadata"]["labels"]
        }
        assert numbers["scheduler-0"] == "0"
        assert numbers["scheduler-1"] == "1"

    async def test_a_budget_counts_the_pods_of_its_service(self, kubectl, applied):
        def are_counted() -> bool:
            sets = {
                each["metadata"]["name"]: each["spec"]["replicas"] for each in kubectl.items("statefulsets")
            }
            counted = {
                each["metadata"]["name"]: each.get("status", {}).get("expectedPods")
                for each in kubectl.items("poddisruptionbudgets")
            }
            return len(counted) == 9 and all(count == sets[name] for name, count in counted.items())

        await until(are_counted, every=0.5)

    def test_it_may_be_applied_again(self, kubectl, example, applied):
        assert sorted(kubectl.apply(example)) == sorted(applied)

    def test_services_of_another_release_wait_for_its_bootstrap(self, kubectl, example, applied):
        before = [each for each in example if "retune/service" not in each["metadata"].get("labels", {})]
        names = kubectl.apply(before, "--dry-run=server", "--selector=!retune/service")
        everything = kubectl.apply(example, "--dry-run=server", "--selector=!retune/service")
        assert names == everything
        assert "job.batch/bootstrap" in names
        assert not any(name.startswith("statefulset.apps/scheduler") for name in names)


class TestVariants:
    @pytest.fixture(autouse=True)
    def without_jobs(self, kubectl, applied):
        """The guide has them deleted before those of other images are applied."""
        jobs = ("job/bootstrap", "job/suites", "--ignore-not-found")
        kubectl("delete", f"--namespace={NAMESPACE}", *jobs)

    def test_the_base_alone(self, kubectl, tmp_path: Path):
        rendered = kubectl.rendered(write_overlay(tmp_path))
        assert len(kubectl.apply(rendered, "--dry-run=server")) == len(rendered)
        sets = named(rendered, "StatefulSet")
        assert len(sets) == len(SERVICES)
        assert all(each["spec"]["replicas"] for each in sets.values())

    def test_scoring_and_vllm_on_gpus(self, kubectl, tmp_path: Path):
        component = relpath(COMPONENTS / "gpu", tmp_path.resolve())
        rendered = kubectl.rendered(write_overlay(tmp_path, components=[component]))
        assert len(kubectl.apply(rendered, "--dry-run=server")) == len(rendered)
        for name, setting in (
            ("evaluator", "EVALUATOR_DEVICE"),
            ("serving-controller", "SERVING_CONTROLLER_DTYPE"),
        ):
            [container] = named(rendered, "StatefulSet")[name]["spec"]["template"]["spec"]["containers"]
            assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
            variables = {entry["name"]: entry.get("value") for entry in container["env"]}
            assert variables[setting] in {"cuda", "auto"}
            assert len(variables) > 10, "the others stay"


class TestRefusals:
    """What makes the tests above say something."""

    @pytest.mark.parametrize("kind", ["StatefulSet", "Kafka", "Cluster", "ScaledObject", "PodMonitor"])
    def test_a_field_that_nobody_knows(self, kubectl, example, applied, kind: str):
        [some, *_] = named(example, kind).values()
        changed = {**some, "spec": {**some["spec"], "replicaz": 3}}
        with pytest.raises(
            Refused, match=r'(unknown field "spec\.replicaz"|\.spec\.replicaz: field not declared)'
        ):
            kubectl.apply([changed], "--dry-run=server")

    def test_a_pod_that_is_less_confined(self, kubectl, applied):
        pod = {"containers": [{"name": "x", "image": "x"}]}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "x", "namespace": NAMESPACE},
            "spec": pod,
        }
        with pytest.raises(Refused, match=r'violates PodSecurity "restricted:latest"'):
            kubectl.apply([body])


class TestRights:
    def test_the_provisioners_account_has_those_of_its_role_and_no_other(self, cluster, applied):
        allowed = {
            (group, resource, verb)
            for group, resources in ASKED.items()
            for resource, verb in product(resources, VERBS)
            if may(cluster, PROVISIONER, group, resource, verb, within=POOLS)
        }
        [role] = of_kind("Role", MANIFESTS_OF_POOLS).values()
        granted = {
            (group, resource, verb)
            for rule in role["rules"]
            for group, resource, verb in product(rule["apiGroups"], rule["resources"], rule["verbs"])
        }
        assert allowed == granted | {("", "nodes", "get"), ("", "nodes", "list")}

    def test_it_may_do_nothing_where_the_passwords_are(self, cluster, applied):
        allowed = [
            (resource, verb)
            for group, resources in ASKED.items()
            for resource, verb in product(resources, VERBS)
            if may(cluster, PROVISIONER, group, resource, verb, within=NAMESPACE)
        ]
        assert allowed == [("nodes", "get"), ("nodes", "list")]

    @pytest.mark.parametrize("account", ["retune-service", "default"])
    def test_no_other_service_may_ask_for_anything(self, cluster, applied, account: str):
        allowed = [
            (resource, verb)
            for group, resources in ASKED.items()
            for resource, verb in product(resources, VERBS)
            for within in (NAMESPACE, POOLS)
            if may(cluster, account, group, resource, verb, within=within)
        ]
        assert allowed == []

    def test_pods_run_by_these_accounts(self, kubectl, applied):
        accounts = {
            pod["metadata"]["labels"]["retune/service"]: pod["spec"]["serviceAccountName"]
            for pod in kubectl.items("pods")
            if "retune/service" in pod["metadata"]["labels"]
        }
        assert accounts.pop("provisioner") == PROVISIONER
        assert set(accounts.values()) == {"retune-service"}
        assert set(accounts) == set(SERVICES) - {"provisioner"}


def may(
    cluster: KubernetesCluster, account: str, group: str, resource: str, verb: str, *, within: str
) -> bool:
    """Whether the API server lets an account of the services do that in a namespace."""
    name, _, sub = resource.partition("/")
    asked = {"namespace": within, "group": group, "resource": name, "subresource": sub, "verb": verb}
    if resource == "nodes":
        asked["namespace"] = ""
    body: dict[str, Any] = {"spec": {"user": f"{ACCOUNT}:{account}", "resourceAttributes": asked}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(cluster.request("POST", path, body)["status"]["allowed"])
