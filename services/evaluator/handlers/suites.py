"""Registering benchmarks and safety suites: the file is read through before anyone may rely on it."""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

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
from services.evaluator.decide.admission import find_example_problem, find_shortage
from services.evaluator.decide.plan import suite_digest
from services.evaluator.model import Suite
from services.evaluator.scoring.rows import BadRows, read_benchmark, read_prompts
from shared.errors import CorruptObject, Refused, Rejected
from shared.messaging.unit import Task, Unit
from shared.row_files import MAX_GATE_BYTES

NAME = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"


class CheckSuite(Task, frozen=True):
    command: Literal["RegisterBenchmark", "RegisterSafetySuite"]
    command_id: str
    name: str
    file: FileRef
    kind: BenchmarkKind | None = None
    num_fewshot: int = 0
    examples: FileRef | None = None
    margin_points: MarginPoints | None = None
    expects: Expects = "refusal"

    @property
    def key(self) -> str:
        return self.command_id


class SuiteRegistration:
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
                examples=command.examples,
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
        rows = await self._read(task.file, task.kind)
        examples = await self._read(task.examples, task.kind) if task.examples is not None else ()
        suite = _suite(task, len(rows))
        problem = find_shortage(suite) or find_example_problem(
            suite, _by_subject(rows), _by_subject(examples)
        )
        if problem is not None:
            raise Rejected(f"file {task.file.file_id}: {problem}")
        return suite

    async def _read(self, file: FileRef, kind: BenchmarkKind | None) -> Sequence[Any]:
        if file.size_bytes > MAX_GATE_BYTES:
            size = f"{file.size_bytes} bytes, expected at most {MAX_GATE_BYTES}"
            raise Rejected(f"file {file.file_id}: {size}")
        try:
            path = await self._cache.blob(file)
            read = read_prompts if kind is None else partial(read_benchmark, kind=kind)
            return await asyncio.to_thread(read, path)
        except (BadRows, CorruptObject) as error:
            raise Rejected(f"file {file.file_id}: {error}") from error

    async def checked(self, task: CheckSuite, suite: Suite, unit: Unit) -> None:
        await store.add_suite(unit.conn, suite, at=unit.now)
        if suite.kind is None:
            fields = suite.model_dump(exclude={"kind", "num_fewshot", "examples", "margin_points"})
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
        digest=suite_digest(
            task.file, task.kind, task.num_fewshot, task.expects, task.margin_points, task.examples
        ),
        file=task.file,
        kind=task.kind,
        num_fewshot=task.num_fewshot,
        examples=task.examples,
        rows=rows,
        margin_points=task.margin_points,
        expects=task.expects,
    )


def _by_subject(rows: Sequence[Any]) -> Counter[str]:
    """Count rows by subject; only published ones have one."""
    return Counter(getattr(row, "subject", "") for row in rows)


async def _require_admissible(command: RegisterBenchmark | RegisterSafetySuite, unit: Unit) -> None:
    _require_name(command.name)
    is_safety = isinstance(command, RegisterSafetySuite)
    if command.only_new and await store.has_suite(unit.conn, command.name, is_safety=is_safety):
        message = f"{command.name} is registered already and only_new is set: it stays as it is"
        raise Refused("already_registered", message, param="name", subject_id=command.name)


def _require_name(name: str) -> None:
    if re.fullmatch(NAME, name) is None:
        message = f"name is {name[:80]!r}, expected letters, digits and `._/-`, at most 128"
        raise Refused("bad_name", message, param="name", subject_id=name[:128] or "-")


def _command_id(unit: Unit) -> str:
    assert unit.envelope is not None, "commands come as messages"
    return unit.envelope.id
