"""docs/guides/service.md followed as printed: in a copy of the tree, then on the stack of these tests.

Not tried: `make reference`, and of `make quick` all but the checks that name each service; step 6, which needs a stack of
the copy's own: here the copy's `deploy.bootstrap` makes the service's user and role on a stack that has the others.
"""

import asyncio
import itertools
import os
import re
import shutil
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml

from deploy.bootstrap.rights import kafka_users, s3_users
from deploy.bootstrap.settings import variable
from deploy.local.stack import Stack
from schemas.job import JobSucceeded
from schemas.topics import SERVICES
from tests.documents import FENCE, ROOT
from tests.integration.gateway.world import mark
from tests.integration.voices import voices
from tests.waiting import until

pytestmark = pytest.mark.stack

GUIDE = (ROOT / "docs/guides/service.md").read_text()
NAME = "historian"
FOLDERS = ("deploy", "schemas", "services", "shared", "tests/architecture")
FILES = (
    "Makefile", "docker-compose.yml", "pyproject.toml", "docs/retention.md", "tests/__init__.py", "tests/conftest.py",
    "tests/chaos/__init__.py", "tests/chaos/scale.py", "tests/integration/__init__.py", "tests/integration/conftest.py",
    "tests/integration/local/__init__.py", "tests/integration/local/test_matrices.py",
)  # fmt: skip
NAMED_FILE = re.compile(r"^`(\w[\w./]+)`(?:[^\n]+\n)+\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of a file's text, below a paragraph that begins with the file's name."""
CHECKS = (
    "tests/architecture/test_manifests.py",
    "tests/architecture/test_retention.py",
    "tests/architecture/test_service_readmes.py",
    "tests/integration/local/test_matrices.py::test_every_topic_group_and_schema_is_declared",
)
PYTHON = """#!/bin/sh
case "$1 $2" in "-m deploy.handled" | "-m schemas.generate") exec {python} "$@" ;; esac
echo "no package is installed from a copy: python $*" >&2
exit 1
"""
"""All of an environment that the copy gets. A recipe that installs would change the environment of these tests."""


def run(copy: Path, *command: str, **settings: str) -> str:
    """The output of a command that succeeds in the copy, whoever runs these tests."""
    theirs = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTEST"))
    }
    done = subprocess.run(
        command, cwd=copy, env=theirs | settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def copy_of_the_tree(root: Path) -> Path:
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, root / folder)
    for file in FILES:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, root / file)
    shutil.copy2(ROOT / "requirements.lock", root)
    python = root / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    (root / ".venv/.installed").touch()
    return root


def follow(copy: Path) -> dict[str, str]:
    """Do what the guide says up to step 5; the output of each command of make."""
    commands = [
        text.strip() for language, text in FENCE.findall(GUIDE) if not language and text.startswith("make ")
    ]
    outputs = {each: run(copy, *each.split()) for each in commands if "NAME=" in each}
    topics = copy / "schemas/topics.py"
    topics.write_text(
        topics.read_text().replace(f'    "{SERVICES[-1]}",\n)', f'    "{SERVICES[-1]}",\n    "{NAME}",\n)', 1)
    )
    for file, _, text in NAMED_FILE.findall(GUIDE):
        path = copy / file
        path.write_text(with_rows(path.read_text(), text) if file.startswith("docs/") else text)
    declare(copy / "deploy/bootstrap/rights.yaml")
    outputs["make schemas"] = run(copy, "make", "schemas")
    return outputs


def with_rows(page: str, rows: str) -> str:
    """The page with these rows below the last one of the tracker."""
    begin, row, end = page.rpartition("| `tracker.")
    first, line_end, rest = end.partition("\n")
    return begin + row + first + line_end + rows + rest


def declare(rights: Path) -> None:
    declared = yaml.safe_load(rights.read_text())
    kafka, topics = declared["kafka"], declared["kafka"]["topics"]
    for topic in ("job.events", "parked.commands"):
        topics[topic]["read"].append(NAME)
    topics[f"parked.{NAME}"] = {"write": [NAME], "read": topics["parked.tracker"]["read"]}
    kafka["groups"][NAME] = [NAME]
    declared["postgres"]["schemas"][NAME] = {"owner": NAME, "read": ["operator"]}
    rights.write_text(yaml.safe_dump(declared))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def outputs(copy: Path) -> dict[str, str]:
    return follow(copy)


def test_commands_print_what_the_guide_shows(outputs: dict[str, str]):
    blocks = FENCE.findall(GUIDE)
    shown = {command.strip(): output for (_, command), (_, output) in itertools.pairwise(blocks)}
    scaffolding = {each: output for each, output in outputs.items() if "NAME=" in each}
    assert len(scaffolding) == 2
    assert scaffolding == {each: shown[each] for each in scaffolding}
    assert "written: schemas/handled.py\n" in outputs["make schemas"]


@pytest.mark.usefixtures("outputs")
def test_the_house_rules_take_the_service(copy: Path):
    run(copy, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHECKS)


def addresses_and_passwords(stack: Stack) -> dict[str, str]:
    """What `deploy.bootstrap` needs, of a stack that is to have the new service too."""
    users = [f"kafka:{user}" for user in ("broker", NAME, *kafka_users(stack.tenants))]
    users += [f"postgres:{role}" for role in ("postgres", "operator", NAME, *SERVICES)]
    users += [f"s3:{user}" for user in ("root", NAME, *s3_users())]
    return {
        "KAFKA_BOOTSTRAP": stack.kafka_bootstrap,
        "POSTGRES_ADDRESS": f"127.0.0.1:{stack.state.port('postgres')}",
        "S3_ENDPOINT": stack.s3_endpoint,
        "TENANT": stack.tenants[0],
        **{variable(name): stack.state.secret(name) for name in users},
    }


@pytest.fixture
async def bootstrapped(stack: Stack, copy: Path, outputs: dict[str, str]) -> AsyncIterator[None]:
    """The service has its user and its role, and loses the role again: other tests ask whose tables there are."""
    settings = addresses_and_passwords(stack)
    await asyncio.to_thread(run, copy, sys.executable, "-m", "deploy.bootstrap", **settings)
    yield
    conn = await asyncpg.connect(stack.postgres_dsn("postgres"))
    await conn.execute(f"DROP OWNED BY {NAME} CASCADE; DROP ROLE {NAME}")
    await conn.close()


@asynccontextmanager
async def running(stack: Stack, copy: Path) -> AsyncIterator[tuple[Process, Path]]:
    """The service as a process of the stack, and its log."""
    settings = stack.service_env(NAME) | dict([stack.state.mark.split("=", 1)])
    log = copy / f"{NAME}.log"
    command = (sys.executable, "-m", f"services.{NAME}.app")
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=copy, env=os.environ | settings, stdout=file, stderr=file
        )
        try:
            yield process, log
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


@pytest.mark.usefixtures("bootstrapped")
async def test_the_service_saves_what_its_handler_is_for(stack: Stack, copy: Path):
    select = re.search(r"`(SELECT [^`]+)`", GUIDE)
    assert select, "the guide asks the table nothing"
    fact = JobSucceeded(
        job_id=f"ftjob-{mark()}", tenant="demo", fine_tuned_model="ft:x", model_id="mv-1",
        promoted=True, deployed=True, message="done",
    )  # fmt: skip
    conn = await asyncpg.connect(stack.postgres_dsn("operator"))
    async with running(stack, copy) as (process, log), voices(stack) as speaking:
        await speaking.say("scheduler", fact)

        async def saved() -> Any:
            assert process.returncode is None, log.read_text()
            return next((row for row in await conn.fetch(select[1]) if row["job_id"] == fact.job_id), None)

        row = await until(saved, f"the row of {fact.job_id}; {log}")
    await conn.close()
    assert (row["tenant"], list(row.keys())) == ("demo", ["job_id", "tenant", "ended_at"])
    (shown,) = re.findall(r"^\[<Record (\w+)=\S+ (\w+)=\S+ (\w+)=", GUIDE, re.MULTILINE)
    assert list(shown) == list(row.keys())
