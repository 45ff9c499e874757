"""`make service` and `make migration` write what the platform takes as it is."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest
import yaml

import services
from deploy import scaffold
from schemas.topics import LISTENS, PARKED_COMMANDS
from tests.architecture.containers import extras, resolved
from tests.architecture.test_rules import ANATOMY

REPOSITORY = scaffold.ROOT
BASE, EXAMPLE = "deploy/kubernetes/base", "deploy/kubernetes/overlays/example"
MANIFESTS = (f"{BASE}/tracker.yaml", f"{BASE}/kustomization.yaml", f"{EXAMPLE}/kustomization.yaml")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "services").mkdir()
    shutil.copy(REPOSITORY / "docker-compose.yml", tmp_path)
    for file in MANIFESTS:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / file, tmp_path / file)
    monkeypatch.setattr(scaffold, "ROOT", tmp_path)
    return tmp_path


def containers(root: Path) -> dict:
    return yaml.safe_load((root / "docker-compose.yml").read_text())["services"]


def test_a_new_service_looks_like_the_others(root: Path):
    output = scaffold.new_service("archivist")
    rooms = {path.name.removesuffix(".py") for path in (root / "services/archivist").iterdir()}
    assert {"app", "handlers", "settings", "migrations", "README.md"} <= rooms <= ANATOMY
    for path in ("docker-compose.yml", "deploy/kubernetes", "schemas/topics.py", "make schemas"):
        assert path in output


def test_a_new_service_has_a_container_and_the_others_keep_theirs(root: Path):
    before = containers(root)
    scaffold.new_service("archivist")
    after = containers(root)
    container = after.pop("archivist")
    own = resolved(container)
    assert after == before
    assert extras(container) == set()
    ports = {value for name in before for key, value in resolved(before[name]).items() if "HTTP_PORT" in key}
    assert own["ARCHIVIST_HTTP_PORT"] not in ports
    assert own["ARCHIVIST_KAFKA_PASSWORD"] == "SECRET_KAFKA_ARCHIVIST"
    assert not [name for name in own if "TRACKER" in name]


def test_a_new_service_has_pods_at_the_port_of_its_container(root: Path):
    scaffold.new_service("wise_archivist")
    own = list(yaml.safe_load_all((root / BASE / "wise-archivist.yaml").read_text()))
    assert [each["kind"] for each in own] == ["StatefulSet", "Service", "PodDisruptionBudget"]
    assert {each["metadata"]["name"] for each in own} == {"wise-archivist"}
    assert own[0]["spec"]["serviceName"] == "wise-archivist"
    assert {each["metadata"]["labels"]["retune/service"] for each in own} == {"wise_archivist"}
    [pod] = own[0]["spec"]["template"]["spec"]["containers"]
    assert pod["image"] == "retune-wise_archivist"
    port = resolved(containers(root)["wise_archivist"])["WISE_ARCHIVIST_HTTP_PORT"]
    assert pod["ports"] == [{"name": "http", "containerPort": int(port)}]
    variables = {entry["name"]: entry.get("value") for entry in pod["env"]}
    assert variables["WISE_ARCHIVIST_HTTP_PORT"] == port
    assert "tracker" not in (root / BASE / "wise-archivist.yaml").read_text().lower()
    listed = yaml.safe_load((root / BASE / "kustomization.yaml").read_text())["resources"]
    assert listed.index("wise-archivist.yaml") == listed.index("tracker.yaml") + 1
    images = yaml.safe_load((root / EXAMPLE / "kustomization.yaml").read_text())["images"]
    name = "registry.internal/retune/wise_archivist"
    assert {"name": "retune-wise_archivist", "newName": name, "newTag": "0.1.0"} in images


def test_a_new_service_starts_on_the_settings_of_its_container(root: Path, monkeypatch: pytest.MonkeyPatch):
    scaffold.new_service("archivist")
    monkeypatch.setattr(services, "__path__", [*services.__path__, str(root / "services")])
    monkeypatch.setitem(LISTENS, "archivist", (PARKED_COMMANDS,))
    for name, value in resolved(containers(root)["archivist"]).items():
        monkeypatch.setenv(name, value)
    try:
        service = importlib.import_module("services.archivist.app").build()
    finally:
        for name in [name for name in sys.modules if name.startswith("services.archivist")]:
            del sys.modules[name]
    assert service.handled().keys() == {PARKED_COMMANDS.name}
    assert (service.name, service.settings.kafka_username) == ("archivist", "archivist")


def test_a_name_is_taken_once_and_is_a_word(root: Path):
    scaffold.new_service("archivist")
    with pytest.raises(SystemExit, match="archivist exists already"):
        scaffold.new_service("archivist")
    with pytest.raises(SystemExit, match=r"found 'Archi vist', expected lower-case words"):
        scaffold.new_service("Archi vist")


def test_migrations_are_numbered_on(root: Path):
    scaffold.new_service("archivist")
    outputs = [scaffold.new_migration("archivist", name) for name in ("first", "second")]
    assert outputs == [
        "written: services/archivist/migrations/0001_first.sql",
        "written: services/archivist/migrations/0002_second.sql",
    ]
    text = (root / "services/archivist/migrations/0002_second.sql").read_text()
    assert text.startswith("-- 0002_second.sql: ")


def test_a_migration_needs_a_service(root: Path):
    with pytest.raises(SystemExit, match="no service 'archivist'"):
        scaffold.new_migration("archivist", "first")
