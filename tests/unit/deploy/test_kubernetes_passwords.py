"""The command that writes the Secrets that the manifests name."""

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.images import passwords as images
from deploy.kubernetes import passwords


def made(capsys: pytest.CaptureFixture[str], env_file: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """What it prints, by the name of the Secret."""
    assert passwords.main(arguments, env_file.parent) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["kind"] == "List"
    return {item["metadata"]["name"]: item for item in content["items"]}


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    """A `.env` of somebody who has set a token of the hub and chosen a password."""
    text = (images.REPOSITORY / "docker-compose.yml").read_text()
    (tmp_path / "docker-compose.yml").write_text(text)
    (tmp_path / ".env").write_text("HUB_TOKEN=hf_x\nSECRET_KAFKA_RUNNER=chosen\nCOMPOSE_PROFILES=gpu\n")
    return tmp_path / ".env"


def test_the_services_have_all_passwords_and_nothing_else_of_the_file(capsys, env_file):
    values = made(capsys, env_file)["passwords"]["stringData"]
    kept = dict(line.split("=", 1) for line in env_file.read_text().splitlines())
    assert kept["COMPOSE_PROFILES"] == "gpu"
    assert values == {name: value for name, value in kept.items() if name != "COMPOSE_PROFILES"}
    assert values["HUB_TOKEN"] == "hf_x"
    assert env_file.stat().st_mode & 0o777 == 0o600


def test_passwords_stay_the_same(capsys, env_file):
    assert made(capsys, env_file) == made(capsys, env_file)


def test_cloudnative_pg_gets_a_login_in_its_form(capsys, env_file):
    secrets = made(capsys, env_file)
    assert secrets["postgres-superuser"]["type"] == "kubernetes.io/basic-auth"
    password = secrets["passwords"]["stringData"]["SECRET_POSTGRES_POSTGRES"]
    assert secrets["postgres-superuser"]["stringData"] == {"username": "postgres", "password": password}


def test_nodes_of_attempts_get_addresses_with_their_login(capsys, env_file):
    options = (
        "--namespace=ml",
        "--pools=nodes",
        "--kafka-bootstrap=kafka.example:9093",
        "--trainer-agent-url=https://agent.example",
        "--serving-controller-url=https://serving.example",
        "--evaluator-url=https://evaluator.example",
    )
    secrets = made(capsys, env_file, *options)
    namespaces = {name: item["metadata"]["namespace"] for name, item in secrets.items()}
    assert namespaces == {"passwords": "ml", "postgres-superuser": "ml", "runner": "nodes"}
    runner = secrets["runner"]["stringData"]
    assert runner["RUNNER_KAFKA_PASSWORD"] == "chosen"
    assert runner["RUNNER_KAFKA_BOOTSTRAP"] == "kafka.example:9093"
    assert runner["RUNNER_TRAINER_AGENT_URL"] == "https://agent.example"
    assert runner["RUNNER_SERVING_CONTROLLER_URL"] == "https://serving.example"
    assert runner["RUNNER_EVALUATOR_URL"] == "https://evaluator.example"
