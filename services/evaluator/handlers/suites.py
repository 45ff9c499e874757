"""Registering benchmarks and safety suites: the file is read through before anyone may rely on it."""

import asyncio
import re
from typing import Literal

from schemas.base import CommandRefused, FileRef
from schemas.evaluation import (
    BenchmarkKind,
    BenchmarkRegistered,
    Expects,
    MarginPoints,
    RegisterBenchmark,
    RegisterSafetySuite,
    SafetySuiteRegistered,
)
from services.evaluator import store
from services.evaluator.clients.files import Cache
from services.evaluator.decide.admission import find_shortage
from services.evaluator.decide.plan import suite_digest
from services.evaluator.model import Suite
from services.evaluator.scoring.rows import PUBLISHED, BadRows, read_benchmark, read_prompts
from shared.errors import CorruptObject, Refused, Rejected
from shared.messaging.unit import Task, Unit

NAME = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"
MAX_SUITE_BYTES = 512 * 1024 * 1024


class CheckSuite(Task, frozen=True):
    command: Literal["RegisterBenchmark", "RegisterSafetySuite"]
    command_id: str
    name: str
    file: FileRef
    kind: BenchmarkKind | None = None
    num_fewshot: int = 0
    margin_points: MarginPoints | None = None
    expects: Expects = "refusal"

    @property
    def key(self) -> str:
        return self.command_id


class SuiteDesk:
    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    async def register_benchmark(self, command: RegisterBenchmark, unit: Unit) -> None:
        await _require_admissible(command, unit)
        await unit.start_task(
            CheckSuite(
                command="RegisterBenchmark",
                command_id=_command_id(unit),
                name=command.name,
                file=command.file,
                kind=command.kind,
                num_fewshot=command.num_fewshot,
                margin_points=command.margin_points,
            )
        )

    async def register_safety_suite(self, command: RegisterSafetySuite, unit: Unit) -> None:
        await _require_admissible(command, unit)
        await unit.start_task(
            CheckSuite(
                command="RegisterSafetySuite",
                command_id=_command_id(unit),
                name=command.name,
                file=command.file,
                expects=command.expects,
            )
        )

    async def check(self, task: CheckSuite) -> Suite:
        """Read every row. Raises Rejected with the first one that is wrong."""
        if task.file.size_bytes > MAX_SUITE_BYTES:
            found = f"{task.file.size_bytes} bytes, expected at most {MAX_SUITE_BYTES}"
            raise Rejected(f"file {task.file.file_id}: {found}")
        try:
            path = await self._cache.blob(task.file)
            read = read_prompts if task.kind is None else lambda found: read_benchmark(found, task.kind)
            rows = len(await asyncio.to_thread(read, path))
        except (BadRows, CorruptObject) as error:
            raise Rejected(f"file {task.file.file_id}: {error}") from error
        if task.num_fewshot and task.kind in PUBLISHED:
            found = f"{task.num_fewshot} few-shot examples"
            raise Rejected(
                f"{task.kind}: {found}, expected 0: its examples are of a split that is not registered"
            )
        if problem := find_shortage(_suite(task, rows)):
            raise Rejected(f"file {task.file.file_id}: {problem}")
        return _suite(task, rows)

    async def checked(self, task: CheckSuite, suite: Suite, unit: Unit) -> None:
        await store.add_suite(unit.conn, suite, at=unit.now)
        if suite.kind is None:
            fields = suite.model_dump(exclude={"kind", "num_fewshot", "margin_points"})
            await unit.emit(SafetySuiteRegistered(**fields))
        else:
            await unit.emit(BenchmarkRegistered(**suite.model_dump(exclude={"expects"})))

    async def refused(self, task: CheckSuite, error: Exception, unit: Unit) -> None:
        is_file = isinstance(error, Rejected)
        await unit.emit(
            CommandRefused(
                subject_id=task.name,
                command=task.command,
                command_id=task.command_id,
                code="bad_file" if is_file else "unavailable",
                message=str(error) if is_file else f"the file could not be read: {error}",
                param="file",
            )
        )


def _suite(task: CheckSuite, rows: int) -> Suite:
    return Suite(
        name=task.name,
        digest=suite_digest(task.file, task.kind, task.num_fewshot, task.expects, task.margin_points),
        file=task.file,
        kind=task.kind,
        num_fewshot=task.num_fewshot,
        rows=rows,
        margin_points=task.margin_points,
        expects=task.expects,
    )


async def _require_admissible(command: RegisterBenchmark | RegisterSafetySuite, unit: Unit) -> None:
    _require_name(command.name)
    is_safety = isinstance(command, RegisterSafetySuite)
    if command.only_new and await store.has_suite(unit.conn, command.name, is_safety=is_safety):
        message = f"{command.name} is registered already and only_new is set: it stays as it is"
        raise Refused("already_registered", message, param="name", subject_id=command.name)


def _require_name(name: str) -> None:
    if re.fullmatch(NAME, name) is None:
        found = f"name is {name[:80]!r}, expected letters, digits and `._/-`, at most 128"
        raise Refused("bad_name", found, param="name", subject_id=name[:128] or "-")


def _command_id(unit: Unit) -> str:
    assert unit.envelope is not None, "commands come as messages"
    return unit.envelope.id
