"""`python3 -m deploy.images.passwords`: write `.env` with a random password for each that docker-compose.yml needs.

Needs nothing but Python. What `.env` has already stays as it is.
"""

import re
from pathlib import Path

from deploy.bootstrap.secret import new_secret
from shared.files import write_whole

REPOSITORY = Path(__file__).parents[2]
REQUIRED = re.compile(r"\$\{(SECRET_[A-Z0-9_]+):\?")
SETTINGS = {"COMPOSE_PROFILES": "cpu"}


def complete(compose: str, known: str) -> str:
    """The text of `.env`: what was there, then what is new."""
    present = {line.partition("=")[0] for line in known.splitlines()}
    variables = SETTINGS | {name: new_secret() for name in sorted(set(REQUIRED.findall(compose)))}
    new = [f"{name}={value}\n" for name, value in variables.items() if name not in present]
    return known + "".join(new)


def write(root: Path = REPOSITORY) -> Path:
    """Complete `.env`, readable by its owner alone, and return where it is."""
    path = root / ".env"
    known = path.read_text() if path.exists() else ""
    write_whole(path, complete((root / "docker-compose.yml").read_text(), known))
    return path


def main(root: Path = REPOSITORY) -> None:
    known = root / ".env"
    before = known.read_text().count("SECRET_") if known.exists() else 0
    path = write(root)
    print(f"{path}: {path.read_text().count('SECRET_')} passwords, {before} of them known before")


if __name__ == "__main__":
    main()
