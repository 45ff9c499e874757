"""New files from templates: `make migration SERVICE= NAME=` and `make service NAME=`."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORD = re.compile(r"^[a-z][a-z0-9_]*$")

FILES = {
    "__init__.py": '"""What this service is for, in one sentence."""\n',
    "settings.py": '''"""Typed environment of {name}."""

from pydantic_settings import SettingsConfigDict

from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="{upper}_", frozen=True)
''',
    "handlers.py": '''"""One function per message: load, decide, save, emit."""

from shared.service import Service


def register(service: Service) -> None:
    """Nothing is handled yet."""
''',
    "app.py": '''"""Wiring of {name}: `python -m services.{name}.app`."""

from services.{name} import handlers
from services.{name}.settings import Settings
from shared.service import Service


def build(settings: Settings | None = None) -> Service:
    service = Service("{name}", settings or Settings())
    handlers.register(service)
    return service


if __name__ == "__main__":
    build().run()
''',
    "README.md": """# {name}

What this service is for, in one sentence.

| | |
|---|---|
| listens to | |
| emits | |
| owns | |

## How it works

## Invariants

## How it fails
""",
}


def new_migration(service: str, name: str) -> str:
    folder = ROOT / "services" / service / "migrations"
    if not folder.is_dir():
        raise SystemExit(f"no service {service!r}: {folder} does not exist")
    numbers = [int(path.name[:4]) for path in folder.glob("[0-9][0-9][0-9][0-9]_*.sql")]
    path = folder / f"{max(numbers, default=0) + 1:04d}_{_word(name)}.sql"
    path.write_text(f"-- {path.name}: what changes and why; safe for the code that runs now\n")
    return f"written: {path.relative_to(ROOT)}"


def new_service(name: str) -> str:
    folder = ROOT / "services" / _word(name)
    if folder.exists():
        raise SystemExit(f"{folder.name} exists already")
    (folder / "migrations").mkdir(parents=True)
    (folder / "migrations" / ".gitkeep").touch()
    for file, text in FILES.items():
        (folder / file).write_text(text.replace("{name}", name).replace("{upper}", name.upper()))
    compose = ROOT / "docker-compose.yml"
    port = _next_port(compose.read_text())
    compose.write_text(with_container(compose.read_text(), name, port))
    _write_manifest(name, port)
    steps = "SERVICES in schemas/topics.py (and to the writers of its topics), then run `make schemas`"
    return (
        f"written: services/{name}, its container in docker-compose.yml and its pods in deploy/kubernetes; "
        f"now add it to {steps}"
    )


def _next_port(compose: str) -> int:
    return 1 + max(map(int, re.findall(r'_HTTP_PORT: "(\d+)"', compose)))


def with_container(compose: str, name: str, port: int) -> str:
    """Add a block like that of tracker behind it, without the extra that tracker has of its own."""
    match = re.search(r"\n  tracker:\n(?:    .*\n)+", compose)
    assert match, "docker-compose.yml has no service tracker to copy"
    block = re.sub(r"build: \{<<: (\S+), args: .*\}", r"build: \1", match[0])
    block = block.replace("tracker", name).replace("TRACKER", name.upper())
    block = re.sub(r'(_HTTP_PORT: )"\d+"', rf'\1"{port}"', block)
    return compose[: match.end()] + block + compose[match.end() :]


def _write_manifest(name: str, port: int) -> None:
    """Write pods like those of tracker, and name them and their image behind its own."""
    kubernetes = ROOT / "deploy/kubernetes"
    object_name = name.replace("_", "-")
    text = manifest((kubernetes / "base/tracker.yaml").read_text(), name, port)
    (kubernetes / f"base/{object_name}.yaml").write_text(text)
    for file, line in (
        ("base/kustomization.yaml", "  - tracker.yaml\n"),
        ("overlays/example/kustomization.yaml", re.compile(r"  - \{name: retune-tracker, .*\n")),
    ):
        path = kubernetes / file
        match = re.search(line, path.read_text())
        assert match, f"{file} does not name tracker"
        own = match[0].replace("tracker.yaml", f"{object_name}.yaml").replace("tracker", name)
        path.write_text(path.read_text().replace(match[0], match[0] + own))


def manifest(tracker: str, name: str, port: int) -> str:
    """Objects of Kubernetes have hyphens in their names."""
    ports = re.search(r"containerPort: (\d+)", tracker)
    assert ports, "the manifest of tracker has no port"
    text = re.sub(r"\A# .*\n", f"# {name}: what it is for, in a few words.\n", tracker)
    text = text.replace(ports[1], str(port)).replace("tracker", name).replace("TRACKER", name.upper())
    return re.sub(
        rf"^(  (?:name|serviceName): ){name}$", rf"\1{name.replace('_', '-')}", text, flags=re.MULTILINE
    )


def _word(name: str) -> str:
    if not WORD.match(name):
        raise SystemExit(f"name: found {name!r}, expected lower-case words joined by underscores")
    return name


def main(arguments: list[str]) -> None:
    match arguments:
        case ["migration", service, name]:
            print(new_migration(service, name))
        case ["service", name]:
            print(new_service(name))
        case _:
            raise SystemExit(
                "usage: make migration SERVICE=<service> NAME=<words>, or make service NAME=<word>"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
