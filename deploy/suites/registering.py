"""Registering the built-in suites: what is there stays as it is, whoever registered it."""

import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli import kafka_commands
from cli.api import Api
from cli.commands.data import wait_until_listed
from deploy.suites import general
from ops.connection import Connection
from ops.errors import RefusedByPlatform
from schemas.base import FileRef, Message
from schemas.evaluation import (
    BenchmarkKind,
    BenchmarkRegistered,
    RegisterBenchmark,
    RegisterSafetySuite,
    SafetySuiteRegistered,
)

FOLDER = Path(__file__).parent
REGISTER_SECONDS = 120.0
ALREADY = "already_registered"


@dataclass(frozen=True)
class Builtin:
    name: str
    purpose: str
    rows: Callable[[], list[dict[str, Any]]]
    command: Callable[[str, FileRef], Message]
    """Makes the command from name and file. It asks that nothing of the name be replaced."""
    fact: type[Message]


def _rows_of(name: str) -> Callable[[], list[dict[str, Any]]]:
    def read() -> list[dict[str, Any]]:
        text = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    return read


BUILTINS = (
    Builtin(
        "general",
        "benchmark",
        general.rows,
        lambda name, file: RegisterBenchmark(
            name=name, kind=BenchmarkKind.MULTIPLE_CHOICE, file=file, only_new=True
        ),
        BenchmarkRegistered,
    ),
    Builtin(
        "refusals",
        "safety-suite",
        _rows_of("refusals"),
        lambda name, file: RegisterSafetySuite(name=name, file=file, only_new=True),
        SafetySuiteRegistered,
    ),
    Builtin(
        "benign",
        "safety-suite",
        _rows_of("benign"),
        lambda name, file: RegisterSafetySuite(name=name, file=file, expects="answer", only_new=True),
        SafetySuiteRegistered,
    ),
)


def write(folder: Path) -> list[Path]:
    """The files as they are registered, for those who want to start their own from them."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(builtin, folder) for builtin in BUILTINS]


def register(connection: Connection, report: Callable[[str], None]) -> None:
    """Register what no suite has the name of; return when jobs that are submitted now are judged by it.

    Raises RefusedByPlatform, Unreachable.
    """
    api = Api(connection)
    missing = [builtin for builtin in BUILTINS if builtin.name not in _registered(api)]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(len(BUILTINS)) as pool:
        are_new = pool.map(lambda each: _register(connection, api, each, Path(scratch)), missing)
        registered = [each.name for each, is_new in zip(missing, are_new, strict=True) if is_new]
    if registered:
        report(f"registered the built-in suites {', '.join(registered)}")


def _register(connection: Connection, api: Api, builtin: Builtin, scratch: Path) -> bool:
    """Whether it is new."""
    operator = Api(connection, as_admin=True)
    file = operator.upload(_write(builtin, scratch), purpose=builtin.purpose)
    stored = FileRef(
        file_id=file["id"],
        sha256=file["retune"]["sha256"],
        size_bytes=file["bytes"],
        filename=file["filename"],
    )
    command = builtin.command(builtin.name, stored)
    try:
        fact = kafka_commands.command(connection, command, until=[builtin.fact], seconds=REGISTER_SECONDS)
    except RefusedByPlatform as error:
        if str(error).startswith(f"{ALREADY}:"):
            return False
        raise
    assert isinstance(fact, BenchmarkRegistered | SafetySuiteRegistered)
    wait_until_listed(api, fact)
    return True


def _write(builtin: Builtin, folder: Path) -> Path:
    path = folder / f"{builtin.name}.jsonl"
    lines = (json.dumps(row, ensure_ascii=False) for row in builtin.rows())
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _registered(api: Api) -> set[str]:
    return {suite["name"] for suite in api.get("/suites")["data"]}
