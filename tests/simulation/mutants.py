"""Production with one thing broken. What the simulation does not notice about these, it cannot show of the rest."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from schemas.lifecycle import TERMINAL
from services.checkpoint_watcher import decide as watching
from services.checkpoint_watcher.model import Checkpoint
from services.evaluator.decide import lifecycle
from services.evaluator.handlers import gate
from services.evaluator.model import EvaluationState
from services.provisioner import decide as provisioning
from services.provisioner import leases as leasing
from services.provisioner.handlers import leases as lease_handlers
from services.provisioner.handlers.cluster import Cluster
from services.registry.decide import versions
from services.scheduler.decide import facts, transitions
from services.scheduler.decide.decision import Decision, StartOverdue
from services.scheduler.model import Job
from services.trainer_agent import decide as control
from tests.simulation.kernel import Switches
from tests.simulation.stores import checkpoint_watcher, evaluator, scheduler
from tests.simulation.tables import Tables

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], Switches | None]


def no_inbox(patch: Patch) -> Switches:
    return Switches(has_inbox=False)


def offset_before_effect(patch: Patch) -> Switches:
    return Switches(commits_offset_after_effect=False)


def outbox_marked_before_publishing(patch: Patch) -> Switches:
    return Switches(marks_after_publishing=False)


def epochs_ignored_by_the_scheduler(patch: Patch) -> None:
    def store(job: Job, fact: Any, view: Any, *, bundle: Any = None, **fields: Any) -> Decision:
        if job.state in TERMINAL or job.run is None:
            return Decision(job, ignored="too late or too early")
        named = job.facts.named | ({bundle} if bundle else frozenset())
        stored = job.with_run(facts=replace(job.facts, named=named, **fields))
        return transitions.follow(Decision(stored.without_superseded_bundles()), view)

    patch.setattr(facts, "_store", store)


def epochs_ignored_by_the_control_side(patch: Patch) -> None:
    def why_void(one: Any, claim: Any, *, newest: int) -> str:
        return ""

    patch.setattr(control, "_why_void", why_void)


def no_reaper(patch: Patch) -> None:
    async def sweep(self: Cluster) -> None:
        """Orphans stay."""

    patch.setattr(Cluster, "sweep", sweep)


def nodes_called_gone_before_the_fence(patch: Patch) -> Switches:
    return Switches(waits_for_the_fence=False)


def no_start_deadline(patch: Patch) -> None:
    is_over = provisioning._is_over
    patch.setitem(facts.ABOUT_TIME, StartOverdue, lambda job, timer, view: Decision(job))  # type: ignore[arg-type]
    patch.setattr(
        provisioning, "_is_over", lambda one, now: one.stop_deadline is not None and is_over(one, now)
    )


def no_silence_timer(patch: Patch) -> None:
    def silence_due(one: Any, *, now: Any, listening_since: Any) -> control.Decision:
        return control.Decision(one)

    patch.setattr(control, "on_silence_due", silence_due)


def double_verdict(patch: Patch) -> Switches:
    end = lifecycle.end
    patch.setattr(
        lifecycle, "end", lambda one, result: end(replace(one, state=EvaluationState.RUNNING), result)
    )
    return Switches(ends_tasks_apart="evaluator")


def base_check_skipped(patch: Patch) -> None:
    obstacle = versions._obstacle

    def without_base(version: Any, passed: Any, current_sha: str | None) -> Any:
        return obstacle(version, passed, version.base_sha)

    patch.setattr(versions, "_obstacle", without_base)


def stop_never_relayed(patch: Patch) -> None:
    stopping = control.on_job_stopping
    patch.setattr(control, "on_job_stopping", lambda one, event: replace(stopping(one, event), messages=()))


def stop_never_answered(patch: Patch) -> None:
    answer = control.directives_for
    patch.setattr(control, "directives_for", lambda *who, **now: replace(answer(*who, **now), stop=None))


def whoever_asks_is_started(patch: Patch) -> None:
    """A runner on an empty disk trains as if it were the one that passed the barrier."""
    answer = control.directives_for

    def anyone(one: Any, index: int, *, report_id: str, **now: Any) -> control.Directives:
        known = one.runner(index)
        return answer(one, index, report_id=known.report_id if known else report_id, **now)

    patch.setattr(control, "directives_for", anyone)


def checkpoint_verdict_by_digest_alone(patch: Patch) -> None:
    """A bundle whose digest is known of another attempt is not looked at again."""
    add = checkpoint_watcher.add_checkpoint

    async def add_new_digest(
        conn: Tables, job_id: str, tenant: str, bundle: Any, *kind: Any, best: Any, at: Any
    ) -> bool:
        known = {
            each.bundle.manifest_sha256 for each in await checkpoint_watcher.list_checkpoints(conn, job_id)
        }
        is_new = await add(conn, job_id, tenant, bundle, *kind, best=best, at=at)
        return is_new and bundle.manifest_sha256 not in known

    patch.setattr(checkpoint_watcher, "add_checkpoint", add_new_digest)


def retention_forgets_the_best(patch: Patch) -> None:
    expirable = watching.expirable

    def without_best(checkpoints: Any, attempt: Any, **limits: Any) -> list[Checkpoint]:
        return expirable([replace(each, best=None) for each in checkpoints], attempt, **limits)

    patch.setattr(watching, "expirable", without_best)


def verdict_without_the_best(patch: Patch) -> None:
    patch.setattr(watching, "waits_for_best", lambda checkpoint, checkpoints: False)
    patch.setattr(watching, "problem_of_best", lambda checkpoint, checkpoints: "")


def evaluation_verdict_by_digest_alone(patch: Patch) -> None:
    def key(artifact: Any, version: Any, harness: Any, required: Any, *, engines: Any) -> str:
        return str(version.digest)

    patch.setattr(gate, "result_key", key)


def resume_from_the_stage_before(patch: Patch) -> None:
    patch.setattr(Job, "is_of_stage_before", lambda job, bundle: False)


def resume_only_from_the_last_attempt(patch: Patch) -> None:
    def resume(self: Job) -> Any:
        own = [bundle for bundle in self.verified if bundle.attempt == self.attempt]
        return max(own, key=lambda bundle: bundle.step, default=None)

    patch.setattr(Job, "resume", property(resume))


def leases_never_expire(patch: Patch) -> None:
    async def lease_due(timer: Any, unit: Any) -> None:
        """Nobody looks whether it is over."""

    patch.setattr(lease_handlers, "lease_due", lease_due)


def leases_regardless_of_others(patch: Patch) -> None:
    serve = leasing.serve
    patch.setattr(leasing, "serve", lambda pool: serve(replace(pool, leased={})))


MUTANTS: dict[Mutant, set[str]] = {
    no_inbox: {"applied twice", "written twice"},
    offset_before_effect: {"parked", "not at rest"},
    outbox_marked_before_publishing: {"parked", "not at rest"},
    epochs_ignored_by_the_scheduler: {"old epoch"},
    epochs_ignored_by_the_control_side: {"parked", "closed attempt", "old epoch"},
    no_reaper: {"not at rest"},
    nodes_called_gone_before_the_fence: {"runner left", "two attempts train"},
    no_start_deadline: {"not at rest"},
    no_silence_timer: {"not at rest"},
    double_verdict: {"two verdicts"},
    base_check_skipped: {"stale base"},
    stop_never_relayed: {"stop not relayed", "not stopped"},
    stop_never_answered: {"stop not relayed", "not stopped"},
    whoever_asks_is_started: {"two children"},
    checkpoint_verdict_by_digest_alone: {"not at rest"},
    retention_forgets_the_best: {"lost artifact", "verdicts"},
    verdict_without_the_best: {"unverified artifact", "lost artifact"},
    evaluation_verdict_by_digest_alone: {"false pass"},
    resume_only_from_the_last_attempt: {"resume point"},
    resume_from_the_stage_before: {"resume point"},
    leases_never_expire: {"not at rest"},
    leases_regardless_of_others: {"capacity"},
}
"""Each with what it shows itself as, so that no other alarm passes for it."""


def submission_and_dataset_without_a_lock(patch: Patch) -> None:
    patch.setattr(scheduler, "lock_dataset", lock_nothing)


def version_and_evaluation_without_a_lock(patch: Patch) -> None:
    patch.setattr(evaluator, "lock_job", lock_nothing)


async def lock_nothing(conn: Tables, name: str) -> None:
    """Whoever writes one row and reads the other's may miss it."""


OF_TWO_PROCESSES: dict[Mutant, set[str]] = {
    submission_and_dataset_without_a_lock: {"not at rest"},
    version_and_evaluation_without_a_lock: {"not at rest", "verdicts"},
}
"""What breaks only where a service has two processes."""
