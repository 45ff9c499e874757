"""The manifests of deploy/kubernetes say what the code needs, no more and no less."""

import re
from collections.abc import Mapping

import pytest
import yaml

from deploy.bootstrap.settings import Settings as BootstrapSettings
from deploy.bootstrap.settings import variable
from deploy.bootstrap.site import KAFKA_SUPER_USER, POSTGRES_SUPER_USER
from deploy.images import passwords as images_passwords
from deploy.kubernetes import passwords
from deploy.kubernetes.definitions import FILES
from deploy.local import stack as launcher
from deploy.monitoring.metrics import metrics
from schemas.topics import DEFAULT_PARTITIONS, SERVICES
from services.provisioner.settings import parse_pools
from shared.health import ROUTES
from tests.architecture import containers
from tests.architecture.manifests import (
    BASE,
    COMPONENTS,
    EXAMPLE,
    POOLS,
    container,
    documents,
    environment,
    kustomization,
    nodes_ports,
    of_kind,
    own_environment,
    pod,
    resources,
    secret_keys,
    service_of,
    workloads,
)
from tests.architecture.source import ROOT
from tests.architecture.test_containers import settings_of, variables

STATEFUL_SETS = of_kind("StatefulSet")
BY_SERVICE = {service_of(each): each for each in STATEFUL_SETS.values()}
PARTS = {
    "kafka:9092": "KAFKA_BOOTSTRAP",
    "postgres:5432": "POSTGRES_ADDRESS",
    "http://s3:7070": "S3_ENDPOINT",
}
"""Addresses of docker-compose.yml, and what the ConfigMap calls them."""
DIFFERS = {
    "INSTANCE": "processes of one service tell each other apart",
    "VALIDATIONS": "one at a time, so that the number of pods is that of validations",
    "GATES": "one at a time",
    "REPLICA_HOST": "gateways and evaluators are on other machines",
    "REPLICA_KEYS_DIR": "on a volume that they share",
    "KEYS_DIR": "on a volume that they share",
    "PUBLIC_KEY_FILE": "beside the signing key, on its volume",
    "NODES_S3_ENDPOINT": "nodes are in another namespace",
    "REPLICATION_FACTOR": "of three brokers",
    "MIN_INSYNC_REPLICAS": "of three brokers",
}
"""Settings that are not those of docker-compose.yml, and why."""
ALONE = {
    "evaluator": "its scoring takes the memory of a machine; more pods are a decision, or KEDA's",
    "serving_controller": "replicas are processes of its pod",
    "auditor": "only one reads and signs",
}
"""Services with one pod, which a drain may end at any time."""


def generated(kind: str) -> Mapping[str, str]:
    """The values of a Secret that the command makes of a new `.env`."""
    text = images_passwords.complete((ROOT / "docker-compose.yml").read_text(), "")
    known = dict(line.split("=", 1) for line in text.splitlines())
    options = passwords.parser().parse_args([])
    return next(
        item["stringData"]
        for item in passwords.secrets(known, options)["items"]
        if item["metadata"]["name"] == kind
    )


def settings_of_compose(name: str) -> dict[str, str]:
    """The settings of a service there, with the addresses and the names of secrets that are used here."""
    addresses = of_kind("ConfigMap")["platform"]["data"]
    values = {"REGISTRY_HUB_TOKEN": "HUB_TOKEN"}
    for setting, value in containers.resolved(containers.services()[name]).items():
        if setting.startswith(f"{name.upper()}_"):
            parts = [word for word in PARTS if word in value]
            replaced = value.replace(parts[0], addresses[PARTS[parts[0]]]) if parts else value
            values[setting] = values.get(setting, replaced)
    return {setting: value for setting, value in values.items() if setting.startswith(f"{name.upper()}_")}


class TestServices:
    def test_all_of_the_tree_and_nothing_else(self):
        assert set(BY_SERVICE) == set(SERVICES), "a new service: copy deploy/kubernetes/base/tracker.yaml"
        listed = set(kustomization(BASE)["resources"])
        assert {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"} == listed

    @pytest.mark.parametrize("name", SERVICES)
    def test_everything_of_a_service_has_its_name(self, name: str):
        own = documents(BASE / f"{name.replace('_', '-')}.yaml")
        assert {each["metadata"]["name"] for each in own} == {name.replace("_", "-")}
        assert {service_of(each) for each in own} == {name}
        stateful_set = BY_SERVICE[name]
        labels = {"retune/service": name}
        assert stateful_set["spec"]["selector"] == {"matchLabels": labels}
        assert stateful_set["spec"]["template"]["metadata"] == {"labels": labels}
        assert stateful_set["spec"]["serviceName"] in of_kind("Service")
        assert of_kind("Service")[name.replace("_", "-")]["spec"]["selector"] == labels

    @pytest.mark.parametrize("name", SERVICES)
    def test_a_pod_runs_what_the_container_of_compose_runs(self, name: str):
        ours, theirs = container(BY_SERVICE[name]), containers.services()[name]
        assert ours["command"] == theirs["command"]
        assert ours["image"] == f"retune-{name}", "the name that docker compose gives to what it builds"
        assert "build" in theirs

    @pytest.mark.parametrize("name", SERVICES)
    def test_a_pod_has_the_settings_of_compose_but_for_those_that_must_differ(self, name: str):
        given = own_environment(BY_SERVICE[name])
        differing = {f"{name.upper()}_{word}" for word in DIFFERS}
        assert {key: value for key, value in given.items() if key not in differing} == {
            key: value for key, value in settings_of_compose(name).items() if key not in differing
        }

    @pytest.mark.parametrize("name", SERVICES)
    def test_the_settings_accept_what_a_pod_gets(self, name: str, monkeypatch: pytest.MonkeyPatch):
        given = own_environment(BY_SERVICE[name])
        known = variables(settings_of(name))
        assert {setting for setting, must_be_set in known.items() if must_be_set} <= set(given) <= set(known)
        for setting, value in environment(BY_SERVICE[name]).items():
            monkeypatch.setenv(setting, value)
        assert settings_of(name)().instance == 0

    def test_a_process_is_known_by_the_number_of_its_pod(self):
        field = {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}
        for name, stateful_set in BY_SERVICE.items():
            env = {entry["name"]: entry for entry in container(stateful_set)["env"]}
            assert env[f"{name.upper()}_INSTANCE"]["valueFrom"] == field

    def test_what_a_value_is_made_of_comes_before_it(self):
        """Kubernetes leaves `$(NAME)` as it is where NAME comes later."""
        for name, workload in workloads().items():
            unfilled = {key for key, value in environment(workload).items() if "$(" in value}
            assert unfilled == set(), name

    def test_folders_lie_on_volumes(self):
        for name, stateful_set in BY_SERVICE.items():
            mounted = [mount["mountPath"] for mount in container(stateful_set).get("volumeMounts", ())]
            for setting, value in own_environment(stateful_set).items():
                if re.search(r"_(DIR|FILE)$", setting) and value != "/dev/null":
                    assert any(value.startswith(f"{path}/") for path in mounted), f"{name}: {setting}"

    def test_a_volume_that_is_mounted_is_there(self):
        for name, workload in workloads().items():
            there = {volume["name"] for volume in pod(workload).get("volumes", ())}
            there |= {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", ())}
            assert {mount["name"] for mount in container(workload).get("volumeMounts", ())} == there, name
        claims = {
            volume["persistentVolumeClaim"]["claimName"]
            for workload in workloads().values()
            for volume in pod(workload).get("volumes", ())
            if "persistentVolumeClaim" in volume
        }
        assert claims == set(of_kind("PersistentVolumeClaim"))

    def test_the_provisioner_has_a_pools_file_that_it_can_read(self):
        example = documents(EXAMPLE / "pools.yaml")[0]
        for pools in (of_kind("ConfigMap")["pools"], example):
            assert pools["metadata"]["name"] == "pools"
            read = parse_pools(pools["data"]["pools.toml"], count_gpus=lambda: None)
            assert {pool.backend for pool in read.values()} == {"kubernetes"}
            assert 'secret = "runner"' in pools["data"]["pools.toml"]


class TestPorts:
    @pytest.mark.parametrize("name", SERVICES)
    def test_it_is_the_one_of_the_settings(self, name: str):
        variables = own_environment(BY_SERVICE[name])
        ports = {"http": int(variables[f"{name.upper()}_HTTP_PORT"])}
        if name in nodes_ports():
            ports["nodes"] = nodes_ports()[name]
        assert container(BY_SERVICE[name])["ports"] == [
            {"name": listener, "containerPort": port} for listener, port in ports.items()
        ]
        spec = of_kind("Service")[name.replace("_", "-")]["spec"]
        assert spec["ports"] == [
            {"name": listener, "port": port, "targetPort": listener} for listener, port in ports.items()
        ]
        assert variables[f"{name.upper()}_HTTP_HOST"] == "0.0.0.0"

    def test_the_suites_are_registered_at_the_gateway(self):
        suites = environment(of_kind("Job")["suites"])
        gateway = own_environment(BY_SERVICE["gateway"])
        assert suites["RETUNE_BASE_URL"] == f"http://gateway:{gateway['GATEWAY_HTTP_PORT']}/v1"
        compose = containers.resolved(containers.services()["suites"])
        left = {name for name in suites if name.startswith("RETUNE_")}
        assert set(compose) - left == {
            "RETUNE_TENANT_KAFKA_USERNAME",
            "RETUNE_TENANT_KAFKA_PASSWORD",
            "RETUNE_AUDIT_PUBLIC_KEY_FILE",
        }
        assert left <= set(compose)


class TestProbes:
    def test_no_process_is_restarted_for_what_is_away(self):
        """/healthz is no reason to restart: a process that waits for Kafka or Postgres is one that works."""
        for name, stateful_set in BY_SERVICE.items():
            probes = {
                kind: container(stateful_set)[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")
            }
            assert {probe["httpGet"]["port"] for probe in probes.values()} == {"http"}
            assert {probe["httpGet"]["path"] for probe in probes.values()} == {"/livez", "/healthz"}
            assert "/livez" in ROUTES
            assert "/healthz" in ROUTES
            assert probes["liveness"]["httpGet"]["path"] == "/livez"
            lasts = probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"]
            is_patient = lasts >= 3600 or probes["startup"]["httpGet"]["path"] == "/livez"
            assert is_patient, f"{name} is restarted while it waits"

    def test_the_gateway_answers_while_kafka_is_away(self):
        gateway = container(BY_SERVICE["gateway"])
        assert gateway["readinessProbe"]["httpGet"]["path"] == "/livez"
        assert gateway["startupProbe"]["httpGet"]["path"] == "/healthz"

    def test_nobody_is_killed_sooner_than_by_the_launcher(self):
        for name, stateful_set in BY_SERVICE.items():
            before = container(stateful_set).get("lifecycle", {}).get("preStop", {}).get("sleep", {})
            grace = pod(stateful_set)["terminationGracePeriodSeconds"] - before.get("seconds", 0)
            assert grace >= launcher.SERVICE_GRACE_SECONDS, name


class TestConfinement:
    def test_a_pod_is_what_the_standard_restricted_asks_for(self):
        for name, workload in workloads().items():
            security = pod(workload)["securityContext"]
            assert security["runAsNonRoot"] is True, name
            assert security["runAsUser"] == 10001, f"{name}: the user of the images"
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            own = container(workload)["securityContext"]
            assert own == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}, name
            kinds = {kind for volume in pod(workload).get("volumes", ()) for kind in volume if kind != "name"}
            assert kinds <= {"emptyDir", "configMap", "persistentVolumeClaim"}, name
        for folder, namespace in ((BASE, passwords.NAMESPACE), (POOLS, passwords.POOLS)):
            labels = of_kind("Namespace", folder)[namespace]["metadata"]["labels"]
            assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}

    def test_only_the_provisioner_has_an_accounts_token(self):
        having = {name for name, each in workloads().items() if pod(each)["automountServiceAccountToken"]}
        assert having == {"provisioner"}
        accounts = {name: pod(each).get("serviceAccountName") for name, each in workloads().items()}
        for kind in ("RoleBinding", "ClusterRoleBinding"):
            [binding] = of_kind(kind, POOLS).values()
            subject = {"name": accounts["provisioner"], "namespace": passwords.NAMESPACE}
            assert {"kind": "ServiceAccount", **subject} in binding["subjects"]
        assert set(accounts.values()) - {None, accounts["provisioner"]} == {"retune-service"}
        assert of_kind("ServiceAccount")["retune-service"]["automountServiceAccountToken"] is False
        assert not any(pod(each)["enableServiceLinks"] for each in workloads().values())

    def test_every_pod_says_what_it_takes(self):
        for name, workload in workloads().items():
            assert container(workload)["resources"]["requests"].keys() == {"cpu", "memory"}, name
            assert container(workload)["resources"]["limits"].keys() == {"memory"}, name


class TestSecrets:
    def test_every_key_that_is_named_is_made(self):
        made = generated("passwords")
        for name, workload in workloads().items():
            assert secret_keys(workload) - set(made) == set(), name

    @pytest.mark.parametrize("name", SERVICES)
    def test_a_service_is_given_its_own_alone(self, name: str):
        own = {f"SECRET_{part}_{name.upper()}" for part in ("KAFKA", "POSTGRES", "S3")}
        more = secret_keys(BY_SERVICE[name]) - own
        compose = containers.services()[name]["environment"]
        assert more == {
            key for value in compose.values() for key in re.findall(r"SECRET_\w+", str(value))
        } - own - {"SECRET_KAFKA_RUNNER"}

    def test_bootstrap_has_what_it_needs(self, monkeypatch: pytest.MonkeyPatch):
        job = of_kind("Job")["bootstrap"]
        assert container(job)["command"] == containers.services()["bootstrap"]["command"]
        sources = [next(iter(source.values()))["name"] for source in container(job)["envFrom"]]
        assert sources == ["platform", "passwords"]
        for setting, value in {**environment(job), **generated("passwords")}.items():
            monkeypatch.setenv(setting, value)
        settings = BootstrapSettings()
        brokers = of_kind("KafkaNodePool", COMPONENTS / "strimzi")["broker"]["spec"]["replicas"]
        assert settings.topics.replication_factor == brokers
        assert settings.password(f"kafka:{KAFKA_SUPER_USER}")

    def test_nodes_of_attempts_reach_what_services_reach(self):
        addresses, runner = of_kind("ConfigMap")["platform"]["data"], generated("runner")
        for nodes, services in (
            (runner["RUNNER_KAFKA_BOOTSTRAP"], addresses["KAFKA_BOOTSTRAP"]),
            (addresses["NODES_S3_ENDPOINT"], addresses["S3_ENDPOINT"]),
            (runner["RUNNER_TRAINER_AGENT_URL"], "http://trainer-agent:8004"),
            (runner["RUNNER_SERVING_CONTROLLER_URL"], "http://serving-controller:8008"),
            (runner["RUNNER_EVALUATOR_URL"], "http://evaluator:8006"),
        ):
            host, port = services.rsplit(":", 1)
            assert nodes == f"{host}.{passwords.NAMESPACE}:{port}", "from another namespace"
        compose = containers.resolved(containers.services()["provisioner"])
        # Nodes of leases are never of the provisioner's container.
        of_leases = {"RUNNER_SERVING_CONTROLLER_URL", "RUNNER_EVALUATOR_URL"}
        assert set(runner) - of_leases == {name for name in compose if name.startswith("RUNNER_")}


class TestDisruptions:
    def test_of_several_pods_one_at_a_time_is_taken_away(self):
        several = {name for name, each in BY_SERVICE.items() if each["spec"]["replicas"] > 1}
        assert several == set(SERVICES) - set(ALONE)
        budgets = of_kind("PodDisruptionBudget")
        assert {service_of(budget) for budget in budgets.values()} == several
        for name, budget in budgets.items():
            assert budget["spec"]["maxUnavailable"] == 1
            assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow", (
                "a drain while Kafka is away"
            )
            assert budget["spec"]["selector"] == STATEFUL_SETS[name]["spec"]["selector"]


class TestParts:
    def test_strimzis_kafka_is_what_bootstrap_sets_up(self):
        [kafka] = of_kind("Kafka", COMPONENTS / "strimzi").values()
        spec = kafka["spec"]["kafka"]
        assert "entityOperator" not in kafka["spec"], (
            "its user operator deletes users that are not KafkaUsers"
        )
        assert spec["authorization"] == {"type": "simple", "superUsers": [KAFKA_SUPER_USER]}
        assert spec["config"]["auto.create.topics.enable"] is False
        clients, setup = spec["listeners"]
        assert clients["authentication"] == {"type": "scram-sha-512"}
        host = f"{kafka['metadata']['name']}-kafka-bootstrap"
        assert of_kind("ConfigMap")["platform"]["data"]["KAFKA_BOOTSTRAP"] == f"{host}:{clients['port']}"
        [patch] = kustomization(COMPONENTS / "strimzi")["patches"]
        assert f"{host}:{setup['port']}" in patch["patch"]
        assert "KAFKA_MECHANISM, value: PLAIN" in patch["patch"]
        login = setup["authentication"]["listenerConfig"]
        assert login["sasl.enabled.mechanisms"] == "PLAIN"
        assert (
            f'user_{KAFKA_SUPER_USER}="${{strimzienv:BROKER_PASSWORD}}";' in login["plain.sasl.jaas.config"]
        )
        [password] = spec["template"]["kafkaContainer"]["env"]
        assert password["valueFrom"]["secretKeyRef"]["key"] == variable(f"kafka:{KAFKA_SUPER_USER}")

    def test_the_superuser_of_postgres_is_bootstraps(self):
        [cluster] = of_kind("Cluster", COMPONENTS / "cloudnative-pg").values()
        secret = generated(cluster["spec"]["superuserSecret"]["name"])
        assert secret["username"] == POSTGRES_SUPER_USER
        assert re.fullmatch(r"[0-9a-f]{40}", secret["password"])
        address = of_kind("ConfigMap")["platform"]["data"]["POSTGRES_ADDRESS"]
        assert address == f"{cluster['metadata']['name']}-rw:5432"
        compose = containers.services()["postgres"]
        wanted = re.search(r"max_connections=(\d+)", " ".join(compose["command"]))
        assert wanted
        assert cluster["spec"]["postgresql"]["parameters"]["max_connections"] == wanted[1]
        assert compose["image"].startswith("postgres:18.")
        assert re.search(r":18\.", cluster["spec"]["imageName"])

    def test_the_s3_server_is_that_of_compose(self):
        ours = container(of_kind("StatefulSet", COMPONENTS / "versitygw")["s3"])
        theirs = containers.services()["s3"]
        assert (ours["image"], ours["args"]) == (theirs["image"], theirs["command"])
        assert of_kind("Service", COMPONENTS / "versitygw")["s3"]["spec"]["ports"][0]["port"] == 7070
        assert of_kind("ConfigMap")["platform"]["data"]["S3_ENDPOINT"] == "http://s3:7070"

    def test_pods_on_a_gpu_have_the_settings_of_compose(self):
        patches = {
            patch["target"]["name"]: patch["patch"] for patch in kustomization(COMPONENTS / "gpu")["patches"]
        }
        for name in ("evaluator", "serving_controller"):
            content = yaml.safe_load(patches[name.replace("_", "-")])
            changed = {entry["name"]: entry["value"] for entry in pod(content)["containers"][0]["env"]}
            cpu, gpu = (containers.resolved(containers.services()[which]) for which in (name, f"{name}-gpu"))
            # The cluster gives each pod its GPU: it leases none, and leaves none to jobs while nothing is deployed.
            leased = {f"{name.upper()}_POOL", f"{name.upper()}_SERVE_BASE_MODELS"}
            assert changed == {
                key: value for key, value in gpu.items() if cpu.get(key) != value and key not in leased
            }
        assert pod(content)["containers"][0]["image"] == "retune-serving_controller-gpu"

    def test_each_definition_that_is_fetched_is_of_a_kind_that_is_used(self):
        groups = {
            f"{each['apiVersion'].partition('/')[0]}_{each['kind'].lower()}s.yaml"
            for folder in COMPONENTS.iterdir()
            for each in resources(folder)
            if not re.match(r"v1$|(apps|batch|policy|networking\.k8s\.io)/", each["apiVersion"])
        }
        assert groups == FILES


class TestScaling:
    SCALED = of_kind("ScaledObject", COMPONENTS / "keda")

    def test_a_query_asks_for_metrics_of_the_service(self):
        known = {metric.name for metric in metrics()}
        for name, scaled in self.SCALED.items():
            assert scaled["spec"]["scaleTargetRef"]["name"] == name
            service = service_of(STATEFUL_SETS[name])
            for trigger in scaled["spec"]["triggers"]:
                query = trigger["metadata"]["query"]
                [(metric, asked)] = re.findall(r'(\w+)\{service="(\w+)"\}', query)
                assert metric in known, query
                assert asked == service

    def test_more_pods_than_partitions_are_for_tasks_alone(self):
        for name, scaled in self.SCALED.items():
            queries = " ".join(trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"])
            most, least = scaled["spec"]["maxReplicaCount"], scaled["spec"]["minReplicaCount"]
            assert most <= DEFAULT_PARTITIONS or "tasks_due" in queries, name
            assert least == STATEFUL_SETS[name]["spec"]["replicas"], name

    def test_services_whose_pods_only_stand_by_are_not_scaled(self):
        assert not {"serving-controller", "auditor", "scheduler", "provisioner"} & set(self.SCALED)

    def test_the_number_of_pods_is_kedas(self):
        [patch] = kustomization(COMPONENTS / "keda")["patches"]
        assert set(re.findall(r"[a-z-]+", patch["target"]["name"])) == set(self.SCALED)


class TestExample:
    def test_it_names_every_image_that_is_ours_and_every_component(self):
        renamed = {image["name"] for image in kustomization(EXAMPLE)["images"]}
        ours = {container(each)["image"] for each in workloads().values()}
        assert renamed == {image for image in ours if image.startswith("retune-")}
        built = {f"retune-{name}" for name, each in containers.services().items() if "build" in each}
        assert renamed <= built
        components = {path.rpartition("/")[2] for path in kustomization(EXAMPLE)["components"]}
        assert components == {path.name for path in COMPONENTS.iterdir()} - {"gpu"}

    def test_what_it_asks_for_is_pinned(self):
        tags = {image["newTag"] for image in kustomization(EXAMPLE)["images"]}
        assert tags == {"0.1.0"}


NODES = {"attempts", "replica-nodes"}
"""Policies of what the provisioner creates."""


def test_everything_is_in_the_namespaces_of_the_secrets():
    assert kustomization(BASE)["namespace"] == passwords.NAMESPACE
    for folder in COMPONENTS.iterdir():
        for each in resources(folder):
            of_nodes = each["kind"] == "NetworkPolicy" and each["metadata"]["name"] in NODES
            expected = passwords.POOLS if of_nodes else passwords.NAMESPACE
            assert each["metadata"]["namespace"] == expected, f"{folder.name}: {each['metadata']['name']}"


def test_the_provisioner_can_read_no_password_of_the_platform():
    """It may create Jobs in the namespace of its role, whose pods read any secret there."""
    for kind in ("Role", "RoleBinding"):
        [each] = of_kind(kind, POOLS).values()
        assert each["metadata"]["namespace"] == passwords.POOLS
    [cluster_role] = of_kind("ClusterRole", POOLS).values()
    assert [rule["resources"] for rule in cluster_role["rules"]] == [["nodes"]]
    for pools in (of_kind("ConfigMap")["pools"], documents(EXAMPLE / "pools.yaml")[0]):
        assert f'namespace = "{passwords.POOLS}"' in pools["data"]["pools.toml"]
