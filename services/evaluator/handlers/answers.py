"""Answers of a running gate by an engine of serving, where one is to be asked; the scoring child waits for them.

Nothing here fails a gate: the child learns of whatever goes wrong, which then answers itself.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from schemas.deployment import LoadCandidate, UnloadCandidate
from schemas.model import ModelRegistered
from services.evaluator import store
from services.evaluator.clients.answering import answer_parts, is_given, refuse_parts
from services.evaluator.clients.child import OnReport
from services.evaluator.clients.engine import EngineFailed, VllmEngine
from services.evaluator.model import Host
from services.evaluator.scoring.exchange import ASKED_FILE, Asked
from services.evaluator.scoring.order import Side, WorkOrder
from services.evaluator.scoring.reports import AnswersAsked, Report, Waiting
from services.evaluator.settings import Settings
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.service import Service

log = get_logger(__name__)

LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Run:
    """One run of the scoring child."""

    eval_id: str
    version: ModelRegistered
    engine: str
    work_dir: Path
    on_report: OnReport


class Answers:
    def __init__(self, service: Service, settings: Settings, http: httpx.AsyncClient) -> None:
        self._service = service
        self._settings = settings
        self._http = http

    @asynccontextmanager
    async def given(
        self, eval_id: str, version: ModelRegistered, order: WorkOrder, work_dir: Path, on_report: OnReport
    ) -> AsyncIterator[OnReport]:
        """Follow the child's reports, handing on each; what it asks an engine for is given while this is open."""
        engine = next((part.engine for part in order.parts if part.engine), "")
        if not engine:
            yield on_report
            return
        following = Following(Run(eval_id, version, engine, work_dir, on_report), self._answer)
        try:
            yield following.follow
        finally:
            await following.stop()

    async def _answer(self, run: Run) -> None:
        """Answer what the child asked for, and unload the candidate either way. Raises EngineFailed."""
        limit = self._settings.replica_limit
        raw = await asyncio.to_thread((run.work_dir / ASKED_FILE).read_bytes)
        asked = await asyncio.to_thread(Asked.model_validate_json, raw)
        try:
            async with asyncio.timeout(limit.total_seconds()):
                replica = self._replica(await self._host(run.eval_id, run.version), run.engine)
                failpoint("eval.candidate.loaded")
                concurrency = self._settings.replica_concurrency
                await answer_parts(replica, asked, run.work_dir, run.on_report, concurrency=concurrency)
        except TimeoutError as error:
            raise EngineFailed(f"not all was answered after {limit}") from error
        finally:
            await self._unload(run.eval_id)

    async def _host(self, eval_id: str, version: ModelRegistered) -> Host:
        """Have a replica load the candidate, and wait for it. Raises EngineFailed."""
        async with self._service.unit() as unit:
            await store.ask_for_host(unit.conn, eval_id)
            command = LoadCandidate(
                eval_id=eval_id,
                model_id=version.model_id,
                digest=version.digest,
                base_sha=version.base_sha,
                rank=version.rank,
                until=unit.now + self._settings.replica_limit,
            )
            await unit.emit(command)
        until = time.monotonic() + self._settings.replica_wait.total_seconds()
        while (host := await self._find_host(eval_id)) is None:
            if time.monotonic() > until:
                raise EngineFailed(f"no replica loaded the candidate within {self._settings.replica_wait}")
            await asyncio.sleep(LOOK_SECONDS)
        if host.problem:
            raise EngineFailed(host.problem)
        return host

    async def _find_host(self, eval_id: str) -> Host | None:
        async with self._service.unit() as unit:
            return await store.find_host(unit.conn, eval_id)

    def _replica(self, host: Host, engine: str) -> VllmEngine:
        if host.engine != engine:
            raise EngineFailed(f"replica {host.replica_id} is {host.engine!r}, expected {engine!r}")
        assert self._settings.replica_keys_dir is not None, "no engine is chosen without keys"
        try:
            key = (self._settings.replica_keys_dir / host.replica_id).read_text().strip()
        except OSError as error:
            raise EngineFailed(f"key of replica {host.replica_id}: {error}") from error
        return VllmEngine(
            self._http,
            host.url,
            key,
            name=engine,
            names={Side.BASE: host.served_base, Side.CANDIDATE: host.served_name},
            timeout_seconds=self._settings.replica_timeout.total_seconds(),
        )

    async def _unload(self, eval_id: str) -> None:
        """Unload the candidate. Where this is not sent, it is unloaded when its time is over."""
        async with self._service.unit() as unit:
            await store.forget_host(unit.conn, eval_id)
            await unit.emit(UnloadCandidate(eval_id=eval_id))


class Following:
    """The reports of one run, and the task that answers what they ask."""

    def __init__(self, run: Run, answer: Callable[[Run], Coroutine[Any, Any, None]]) -> None:
        self._run = run
        self._answer = answer
        self._asked: Sequence[str] = ()
        """Names of the parts that the child waits for."""
        self._task: asyncio.Task[None] | None = None

    def follow(self, report: Report) -> None:
        match report:
            case AnswersAsked(parts=parts):
                self._begin(parts)
            case Waiting() if self._task is None or self._task.done():
                refuse_parts(self._asked, self._run.work_dir, "answering ended without an answer")
        self._run.on_report(report)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self, asked: Sequence[str]) -> None:
        self._asked = asked
        if not is_given(asked, self._run.work_dir):
            self._task = asyncio.create_task(self._answer(self._run))
            self._task.add_done_callback(self._close)

    def _close(self, task: asyncio.Task[None]) -> None:
        """Write why there are no answers: the child must not wait for what does not come."""
        if not task.cancelled() and (error := task.exception()):
            problem = f"{type(error).__name__}: {error}"
            log.warning("no engine answers", problem=problem)
            refuse_parts(self._asked, self._run.work_dir, problem)
