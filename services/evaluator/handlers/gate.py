"""The leased task of an evaluation: fetch, score, classify, judge, grade, store; then emit, in one transaction."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from schemas import layout
from schemas.artifacts import BaseModelManifest
from schemas.base import Delayed, FileRef
from schemas.evaluation import CheckResult, Evidence
from schemas.job import Artifact
from schemas.model import ModelRegistered
from services.evaluator import store
from services.evaluator.clients.archive import Archive, item_lines
from services.evaluator.clients.child import OnReport, ScoringCrashed
from services.evaluator.clients.files import Cache, asked_in, count_lines, references_in
from services.evaluator.clients.judge_panel import JudgePanel
from services.evaluator.decide import grading, lifecycle
from services.evaluator.decide.engines import choose_engine
from services.evaluator.decide.evidence import evidence_of, without_leaks
from services.evaluator.decide.grading import Sides
from services.evaluator.decide.items import ShownItem, shown_items
from services.evaluator.decide.lifecycle import Decision
from services.evaluator.decide.memory import devices_for
from services.evaluator.decide.plan import (
    HOLDOUT,
    Harness,
    Known,
    NotRegistered,
    engines_of,
    files_of,
    order_of,
    result_key,
)
from services.evaluator.decide.progress import Key, Progress
from services.evaluator.gates.verdict import combine
from services.evaluator.handlers.evaluations import RunGate
from services.evaluator.handlers.progress import publishing
from services.evaluator.handlers.scoring import Scoring
from services.evaluator.model import Baseline, Evaluation, GateResult
from services.evaluator.scoring.order import Limits, PartScores, Scores, Side, WorkOrder
from services.evaluator.scoring.reports import PartProgressed
from services.evaluator.settings import Settings
from shared.device import device_name
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.messaging.unit import Unit
from shared.service import Service
from shared.storage.objects import get_manifest

log = get_logger(__name__)


@dataclass(frozen=True)
class Plan:
    evaluation: Evaluation
    """Evaluation whose artifact names the suites that are registered now."""
    version: ModelRegistered
    result_key: str
    files: tuple[Known, ...]
    twin: GateResult | None
    """Result of an earlier evaluation that could not but end alike; None where there is none."""
    evidence: Evidence
    problem: str = ""
    """Reason why nothing can be scored; empty where something can."""

    @property
    def blobs(self) -> tuple[FileRef, ...]:
        """Files of rows, each once."""
        return tuple({file.sha256: file for known in self.files for file in known.blobs}.values())


class Gate:
    def __init__(
        self,
        service: Service,
        settings: Settings,
        *,
        cache: Cache,
        scoring: Scoring,
        judge_panel: JudgePanel,
    ) -> None:
        self._service = service
        self._settings = settings
        self._cache = cache
        self._scoring = scoring
        self._judge_panel = judge_panel
        self._archive = Archive(service.objects)
        self._limits = Limits(
            batch_tokens=settings.batch_tokens,
            max_tokens=settings.max_tokens,
            max_new_tokens=settings.max_new_tokens,
            max_answer_tokens=settings.max_answer_tokens,
            device=settings.device,
            device_name=settings.device_name or device_name(settings.device),
        )
        self._harness = Harness(self._limits.harness_version, judge_panel.name)

    async def run(self, task: RunGate) -> GateResult:
        """Return the result, which is in S3 too when this returns."""
        if kept := await self._archive.find_result(task.eval_id):
            return kept
        plan = await self._plan(task.eval_id)
        if plan.twin is not None:
            evidence = plan.evidence.model_copy(update={"measured_by": plan.twin.measured_by})
            own = {"eval_id": task.eval_id, "baselines": (), "evidence": evidence}
            result = plan.twin.model_copy(update=own)
            await self._archive.put_result(result, [])
            return result
        if plan.problem:
            return await self._without_numbers(plan, plan.problem)
        return await self._measure(plan)

    async def ended(self, task: RunGate, result: GateResult, unit: Unit) -> None:
        for baseline in result.baselines:
            if await store.add_baseline(unit.conn, baseline):
                await unit.emit(lifecycle.recorded(baseline))
        if result.outcome != "inconclusive":
            await store.add_verdict(unit.conn, result)
        evaluation = await store.get_evaluation(unit.conn, task.eval_id)
        await store.forget_work(unit.conn, task.eval_id)
        await _publish_decision(unit, lifecycle.end(evaluation, result))

    async def waits(self, task: RunGate, waiting_for: str, unit: Unit) -> None:
        about = (await store.get_evaluation(unit.conn, task.eval_id)).artifact
        await unit.emit(Delayed(subject_id=about.job_id, tenant=about.tenant, waiting_for=waiting_for))

    async def given_up(self, task: RunGate, error: Exception, unit: Unit) -> None:
        evaluation = await store.get_evaluation(unit.conn, task.eval_id)
        await store.forget_work(unit.conn, task.eval_id)
        reason = f"scoring did not end: {type(error).__name__}: {error}"
        await _publish_decision(unit, lifecycle.give_up(evaluation, reason=reason))

    async def _plan(self, eval_id: str) -> Plan:
        async with self._service.unit() as unit:
            evaluation = await store.get_evaluation(unit.conn, eval_id)
            version = evaluation.version
            assert version is not None, f"{eval_id} runs without a version"
            suites = await store.list_newest_suites(unit.conn)
            artifact = lifecycle.renewed(evaluation.artifact, suites)
            baselines = await store.list_baselines(unit.conn, version.base_sha, version.template_sha256)
            engine = await self._choose_engine(unit, version)
            try:
                files = files_of(artifact, suites, baselines, self._harness, engine=engine)
                problem = ""
            except NotRegistered as error:
                files, problem = (), str(error)
            key = self._key(artifact, version, engines_of(files))
            twin = await store.find_verdict(unit.conn, key)
        evidence = evidence_of(
            evaluation.artifact,
            files,
            harness_version=self._harness.of_all(engines_of(files)),
            required=self._settings.required_checks,
            measured_by=eval_id,
        )
        return Plan(replace(evaluation, artifact=artifact), version, key, files, twin, evidence, problem)

    async def _choose_engine(self, unit: Unit, version: ModelRegistered) -> str:
        if self._settings.replica_keys_dir is None or not self._scoring.asks_engines:
            return ""
        ready = await store.list_replicas(unit.conn, version.base_model, version.base_sha)
        return choose_engine(self._settings.answers_by, version, ready)

    def _key(self, artifact: Artifact, version: ModelRegistered, engines: Mapping[str, str]) -> str:
        required = self._settings.required_checks
        return result_key(artifact, version, self._harness, required, engines=engines)

    async def _measure(self, plan: Plan) -> GateResult:
        with self._cache.in_use():
            await self._cache.trim()
            return await self._measure_by(plan, await self._order(plan))

    async def _measure_by(self, plan: Plan, order: WorkOrder) -> GateResult:
        blobs = await self._cache.blobs(plan.blobs)
        paths = {part.name: blobs[part.path] for part in order.parts}
        rows = await asyncio.to_thread(_rows, plan.files, order, paths)
        async with publishing(partial(self._publish_progress, plan.evaluation), rows) as progress:
            scores = await self._score(plan, order, progress.update)
            if scores.failure is not None:
                result = await self._without_numbers(plan, f"{scores.failure.code}: {scores.failure.message}")
            else:
                if plan.evaluation.artifact.gate.judge is not None:
                    progress.update(PartProgressed(part="judge", done=0, total=0))
                result = await self._grade(plan, scores, paths)
        await self._scoring.forget(plan.evaluation, order)
        return result

    async def _score(self, plan: Plan, order: WorkOrder, on_report: OnReport) -> Scores:
        """Have the order carried out, and keep the child's log either way. Raises ScoringCrashed."""
        eval_id = plan.evaluation.eval_id
        try:
            scored = await self._scoring.score(plan.evaluation, order, plan.blobs, on_report)
        except ScoringCrashed as crash:
            await self._archive.put_log(eval_id, crash.log)
            raise
        await self._archive.put_log(eval_id, scored.log)
        return scored.scores

    async def _publish_progress(self, evaluation: Evaluation, progress: Progress) -> None:
        async with self._service.unit() as unit:
            await unit.emit(lifecycle.progressed(evaluation, asdict(progress)))

    async def _order(self, plan: Plan) -> WorkOrder:
        """Return the order, which names what it reads by keys in S3."""
        return order_of(
            plan.version,
            plan.files,
            self._limits,
            base_path=Path(layout.base_model(plan.version.base_sha, "")),
            model_path=Path(layout.model(plan.version.digest, "")),
            blob_paths={file.sha256: Path(layout.blob(file.sha256)) for file in plan.blobs},
            num_devices=await self._num_devices(plan.version),
        )

    async def _num_devices(self, version: ModelRegistered) -> int:
        """Return how many devices of one machine are leased to score the version and its base model on."""
        if self._settings.pool is None:
            return 1
        async with self._service.unit() as unit:
            pool = await store.find_pool(unit.conn, self._settings.pool)
        key = layout.base_model(version.base_sha)
        base = await get_manifest(self._service.objects, key, BaseModelManifest)
        return devices_for(base, self._limits, pool, rank=version.rank)

    async def _grade(self, plan: Plan, scores: Scores, paths: dict[str, Path]) -> GateResult:
        artifact, files = plan.evaluation.artifact, plan.files
        benign = {known.part for known in files if known.is_benign}
        fresh = await self._judge_panel.classified(scores.parts, paths, benign=benign)
        new = {part.part: part for part in fresh if part.side is Side.CANDIDATE}
        base = {part.part: part for part in fresh if part.side is Side.BASE}
        measured = await self._baselines(plan, base)
        for known in files:
            baseline = known.baseline_by(new[known.part].engine) if known.part in new else None
            if known.part not in base and baseline is not None:
                base[known.part] = await self._archive.get_baseline(baseline)
        engines = grading.engines_of(base, new)
        judged = await self._judge_panel.judge(artifact.gate.judge, paths, base=base, new=new)
        references = await asyncio.to_thread(references_in, paths.get(HOLDOUT))
        graded = grading.grade(artifact, files, base=base, new=new, judged=judged, references=references)
        checks = without_leaks(graded, files, artifact.kept_leaks)
        details = {
            "probe": scores.probe.model_dump() if scores.probe else None,
            "seconds": {f"{part.part} {part.side}": round(part.seconds, 3) for part in scores.parts},
            "changes": grading.changes(files, base=base, new=new),
            "engine_problems": {
                part.part: part.engine_problem for part in scores.parts if part.engine_problem
            },
        }
        result = self._result(self._answered_by(plan, engines), checks, measured, details)
        await self._show(plan, paths, base=base, new=new)
        await self._archive.put_result(result, item_lines([*base.values(), *new.values()], judged.pairs))
        return result

    def _answered_by(self, plan: Plan, engines: Mapping[str, str]) -> Plan:
        """Return the plan as it was carried out: parts whose engine did not answer are other evidence."""
        evidence = plan.evidence.model_copy(update={"harness_version": self._harness.of_all(engines)})
        key = self._key(plan.evaluation.artifact, plan.version, engines)
        return replace(plan, result_key=key, evidence=evidence)

    async def _show(self, plan: Plan, paths: dict[str, Path], *, base: Sides, new: Sides) -> None:
        """Store the items for people, the tenant's own apart from the operator's."""
        shown: dict[layout.ItemGroup, list[ShownItem]] = {"holdout": [], "suites": []}
        for known in plan.files:
            asked = await asyncio.to_thread(asked_in, paths[known.part])
            items = shown_items(known, asked, base=base.get(known.part), new=new.get(known.part))
            shown["suites" if known.suite else "holdout"] += items
        for group, items in shown.items():
            failing_first = sorted(items, key=lambda item: item.outcome == "passed")
            await self._archive.put_shown(plan.evaluation.eval_id, group, failing_first)

    async def _baselines(self, plan: Plan, base: dict[str, PartScores]) -> tuple[Baseline, ...]:
        """Keep what was measured of the base model in full, for evaluations to come."""
        kept = []
        for known in plan.files:
            if known.part not in base or not grading.is_whole(known, base[known.part]):
                continue
            key, digest = await self._archive.put_baseline(base[known.part])
            kept.append(
                grading.baseline_of(
                    known,
                    base[known.part],
                    base_sha=plan.version.base_sha,
                    template_sha256=plan.version.template_sha256,
                    harness_version=self._harness.of(
                        is_safety=known.is_safety, engine=base[known.part].engine
                    ),
                    key=key,
                    sha256=digest,
                )
            )
        return tuple(kept)

    async def _without_numbers(self, plan: Plan, reason: str) -> GateResult:
        log.warning("nothing scored", reason=reason)
        checks = lifecycle.without_numbers(plan.evaluation.artifact, reason)
        result = self._result(plan, checks, (), {})
        await self._archive.put_result(result, [])
        return result

    def _result(
        self,
        plan: Plan,
        checks: tuple[CheckResult, ...],
        baselines: tuple[Baseline, ...],
        details: dict[str, Any],
    ) -> GateResult:
        verdict = combine(checks, required=self._settings.required_checks)
        return GateResult(
            eval_id=plan.evaluation.eval_id,
            outcome=verdict.outcome,
            reason=verdict.reason,
            checks=checks,
            result_key=plan.result_key,
            measured_by=plan.evaluation.eval_id,
            harness_version=plan.evidence.harness_version,
            baselines=baselines,
            evidence=plan.evidence,
            details=details,
        )


def _rows(files: tuple[Known, ...], order: WorkOrder, paths: Mapping[str, Path]) -> dict[Key, int]:
    """Return the rows to be scored, by part and side. A holdout's rows are counted: nobody registered it."""
    registered = {known.part: known.suite.rows for known in files if known.suite is not None}
    return {
        (part.name, side.value): registered.get(part.name) or count_lines(paths[part.name])
        for part in order.parts
        for side in (part.engine_sides if part.engine else part.sides)
    }


async def _publish_decision(unit: Unit, decision: Decision) -> None:
    failpoint("eval.verdict.before")
    await store.save_evaluation(unit.conn, decision.evaluation)
    await unit.emit(*decision.events)
