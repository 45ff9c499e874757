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
    compose.write_text(with_container(compose.read_text(), name))
    steps = "SERVICES in schemas/topics.py (and to the writers of its topics), then run `make schemas`"
    return f"written: services/{name} and its container in docker-compose.yml; now add it to {steps}"


def with_container(compose: str, name: str) -> str:
    """Add a block like that of tracker, which has nothing of its own, behind it and at the next port."""
    match = re.search(r"\n  tracker:\n(?:    .*\n)+", compose)
    assert match, "docker-compose.yml has no service tracker to copy"
    ports = map(int, re.findall(r'_HTTP_PORT: "(\d+)"', compose))
    block = match[0].replace("tracker", name).replace("TRACKER", name.upper())
    block = re.sub(r'(_HTTP_PORT: )"\d+"', rf'\1"{max(ports) + 1}"', block)
    return compose[: match.end()] + block + compose[match.end() :]


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
