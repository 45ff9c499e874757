"""docker-compose.yml and the Dockerfiles, parsed; no Docker engine takes part."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.architecture.source import ROOT

IMAGES = ROOT / "deploy/images"
REFERENCE = re.compile(r"\$\{([A-Z0-9_]+)(:[-?])?([^}]*)\}")


@cache
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@cache
def services() -> dict[str, dict[str, Any]]:
    return compose()["services"]


def tree_service(name: str) -> str:
    """The service of the tree that a compose service runs: `evaluator-gpu` runs `evaluator`."""
    return name.removesuffix("-gpu")


def dockerfile(service: dict[str, Any]) -> Path:
    return ROOT / service["build"]["dockerfile"]


def extras(service: dict[str, Any]) -> set[str]:
    """What the image is built with: the build argument, else its default in the Dockerfile."""
    default = re.search(r'^ARG EXTRAS="(.*)"$', dockerfile(service).read_text(), re.MULTILINE)
    assert default, f"{service['build']['dockerfile']} has no ARG EXTRAS"
    return set(service["build"].get("args", {}).get("EXTRAS", default[1]).split())


def resolved(service: dict[str, Any]) -> dict[str, str]:
    """The container's variables, each password replaced by its variable's name."""
    return {
        name: REFERENCE.sub(lambda match: match[1] if match[2] != ":-" else match[3], str(value))
        for name, value in service.get("environment", {}).items()
    }


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", path.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]
