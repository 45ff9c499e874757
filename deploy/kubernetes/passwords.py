"""`python3 -m deploy.kubernetes.passwords | kubectl apply --filename -`: the Secrets that the manifests name.

The passwords are those of `.env`, which is completed first, as for docker-compose.yml. Needs nothing but Python.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.images import passwords
from shared.env_file import read_env_file

NAMESPACE = "retune-platform"
POOLS = "retune"
KAFKA_BOOTSTRAP = f"kafka-kafka-bootstrap.{NAMESPACE}:9092"
TRAINER_AGENT_URL = f"http://trainer-agent.{NAMESPACE}:8004"
SERVING_CONTROLLER_URL = f"http://serving-controller.{NAMESPACE}:8008"
EVALUATOR_URL = f"http://evaluator.{NAMESPACE}:8006"
HUB_TOKEN = "HUB_TOKEN"  # noqa: S105 - the name of the variable


def secrets(known: Mapping[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Return a List of three Secrets: of the services, of CloudNativePG, and of the nodes of attempts."""
    ours = {name: value for name, value in known.items() if name.startswith("SECRET_") or name == HUB_TOKEN}
    superuser = {"username": "postgres", "password": known["SECRET_POSTGRES_POSTGRES"]}
    runner = {
        "RUNNER_KAFKA_BOOTSTRAP": options.kafka_bootstrap,
        "RUNNER_KAFKA_USERNAME": "runner",
        "RUNNER_KAFKA_PASSWORD": known["SECRET_KAFKA_RUNNER"],
        "RUNNER_TRAINER_AGENT_URL": options.trainer_agent_url,
        "RUNNER_SERVING_CONTROLLER_URL": options.serving_controller_url,
        "RUNNER_EVALUATOR_URL": options.evaluator_url,
    }
    items = [
        _secret(options.namespace, "passwords", "Opaque", ours),
        _secret(options.namespace, "postgres-superuser", "kubernetes.io/basic-auth", superuser),
        _secret(options.pools, "runner", "Opaque", runner),
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _secret(namespace: str, name: str, kind: str, values: Mapping[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": metadata, "stringData": values}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m deploy.kubernetes.passwords", description=__doc__)
    parser.add_argument("--namespace", default=NAMESPACE, help="of the services")
    parser.add_argument("--pools", default=POOLS, help="namespace of the nodes of attempts")
    parser.add_argument(
        "--kafka-bootstrap", default=KAFKA_BOOTSTRAP, help="address of Kafka for nodes of attempts"
    )
    parser.add_argument(
        "--trainer-agent-url",
        default=TRAINER_AGENT_URL,
        help="address of trainer_agent for nodes of attempts",
    )
    parser.add_argument(
        "--serving-controller-url",
        default=SERVING_CONTROLLER_URL,
        help="address of serving_controller for nodes of replicas",
    )
    parser.add_argument(
        "--evaluator-url", default=EVALUATOR_URL, help="address of the evaluator for nodes of evaluations"
    )
    return parser


def main(arguments: Sequence[str] | None = None, root: Path = passwords.REPOSITORY) -> int:
    options = parser().parse_args(arguments)
    path = passwords.write(root)
    print(json.dumps(secrets(read_env_file(path), options), indent=2))
    print(f"passwords of {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
