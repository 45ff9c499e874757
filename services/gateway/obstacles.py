"""What is known at submit to keep a job from running, or its model from passing the gate. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from schemas.compatibility import check_base
from schemas.elastic import at_least_nodes, sizes_of
from schemas.gate import HoldoutRule
from schemas.node import PoolCapacityChanged
from schemas.numbers import plural
from schemas.placement import demand, needed_device, suits
from schemas.recipe_rules import Refusal
from schemas.specification import JobSpec, Resources
from services.gateway.memory import Base, why_not_saved_in_time, why_too_large

REGISTER = {
    "benchmark": "`retune data register-benchmark` registers one",
    "safety": "`retune data register-safety-suite` registers one",
    "over_refusal": "`retune data register-safety-suite --benign` registers one",
}
"""What an operator does about a check without a suite."""


@dataclass(frozen=True)
class Policy:
    """The evaluator's settings, as it published them."""

    required_checks: frozenset[str]
    judge_urls: frozenset[str]


@dataclass(frozen=True)
class Known:
    """What the gateway has heard. No job is refused for want of news."""

    policy: Policy | None = None
    checks: frozenset[str] = frozenset()
    """Checks that have a suite."""
    pools: tuple[PoolCapacityChanged, ...] = ()
    """Pools that take the tenant's jobs."""
    holdout_rows: int | None = None
    """Lines of the job's holdout; None where it has none, or one that nobody counted."""
    base: Base | None = None
    """What is known of the base model; None where the name is another model's by now, or was registered before what
    it can do was looked at."""
    windows: tuple[int | None, ...] = ()
    """Window in tokens of each stage's dataset; None where its request has not come yet."""


@dataclass(frozen=True)
class Obstacle:
    code: str
    message: str
    param: str
    """The field of JobSpec at fault."""
    is_final: bool = True
    """Whether nothing that happens later can remove it, so that the job is refused."""


def obstacles(spec: JobSpec, known: Known) -> tuple[Obstacle, ...]:
    return (
        *_of_base(spec, known),
        *_of_suites(spec, known),
        *_of_holdout(spec, known),
        *_of_judge(spec, known),
        *_of_pools(spec, known),
        *_of_notice(spec, known),
    )


def _of_base(spec: JobSpec, known: Known) -> Iterable[Obstacle]:
    if known.base and (refusal := check_base(spec, known.base.capabilities)):
        yield Obstacle(refusal.code, refusal.message, refusal.param)


def _of_suites(spec: JobSpec, known: Known) -> Iterable[Obstacle]:
    """A required check that nothing is asked in: the verdict would be inconclusive."""
    required = known.policy.required_checks if known.policy else frozenset()
    asked = (
        known.checks | ({"holdout"} if spec.holdout else set()) | ({"judge"} if spec.gate.judge else set())
    )
    for check in sorted(required - asked):
        remedy = REGISTER.get(check, f"the job must name its {check}")
        message = (
            f"the gate's check {check} is required and has nothing to ask, so the model cannot pass: {remedy}; "
            "allow_ungated trains anyway"
        )
        yield Obstacle("gate_cannot_pass", message, "allow_ungated", is_final=not spec.allow_ungated)


def _of_holdout(spec: JobSpec, known: Known) -> Iterable[Obstacle]:
    rule, rows = spec.gate.holdout, known.holdout_rows
    if spec.holdout is None and rule != HoldoutRule():
        message = "gate.holdout: the job names no holdout file, so there is nothing to hold the rule against"
        yield Obstacle("holdout_missing", message, "holdout")
    if rows is not None and rows < rule.min_items:
        has = f"the holdout has {plural(rows, 'row')}"
        message = f"{has}, the gate needs at least {rule.min_items}: add rows, or leave it out"
        yield Obstacle("holdout_too_small", message, "holdout")


def _of_judge(spec: JobSpec, known: Known) -> Iterable[Obstacle]:
    judge = spec.gate.judge
    if judge is None:
        return
    if spec.holdout is None:
        message = "gate.judge: a judge compares answers to the holdout, and the job names no holdout file"
        yield Obstacle("holdout_missing", message, "holdout")
    if known.policy is not None and judge.url not in known.policy.judge_urls:
        allowed = ", ".join(sorted(known.policy.judge_urls)) or "none"
        message = f"gate.judge.url: the operator does not allow {judge.url!r}; allowed: {allowed}"
        yield Obstacle("judge_not_allowed", message, "gate.judge.url")


def suited_pools(
    resources: Resources, pools: tuple[PoolCapacityChanged, ...]
) -> tuple[PoolCapacityChanged, ...]:
    """Return the pools that could take the job, as the scheduler chooses them, however many nodes they have."""
    needed, least = needed_device(resources, pools), sizes_of(resources)[0]
    return tuple(pool for pool in pools if suits(least, pool, needed))


def _of_pools(spec: JobSpec, known: Known) -> Iterable[Obstacle]:
    """Operators change how many nodes a pool has, but neither its capacity type nor what its nodes are."""
    spec = at_least_nodes(spec)
    resources = spec.resources
    names = ", ".join(sorted(pool.pool for pool in known.pools))
    named = [pool for pool in known.pools if resources.pool in (None, pool.pool)]
    if not known.pools:
        return
    if not named:
        message = f"resources.pool: there is no pool {resources.pool!r}; known: {names}"
        yield Obstacle("unknown_pool", message, "resources.pool")
        return
    suited = suited_pools(resources, known.pools)
    asked = demand(resources, needed_device(resources, known.pools))
    if not suited:
        where = f"pool {resources.pool}" if resources.pool else f"any pool ({names})"
        yield Obstacle("no_pool_holds", f"resources: {asked} do not fit into {where}", "resources")
        return
    yield from _of_memory(spec, known, suited)
    if all(pool.nodes < resources.nodes for pool in suited):
        largest = max(pool.nodes for pool in suited)
        message = (
            f"resources: {asked}, and the largest pool has {largest} now: the job waits until one has more"
        )
        yield Obstacle("no_pool_holds", message, "resources.nodes", is_final=False)


def _of_memory(spec: JobSpec, known: Known, suited: tuple[PoolCapacityChanged, ...]) -> Iterable[Obstacle]:
    """Yield what keeps a stage from its devices: the first ones would train for nothing."""
    if known.base is None:
        return
    for index, (stage, window) in enumerate(zip(spec.by_stage, known.windows, strict=False)):
        if window is not None and (message := why_too_large(stage, known.base, suited, window)):
            refusal = Refusal("does_not_fit", message, "recipe").of_stage(index)
            yield Obstacle(refusal.code, refusal.message, refusal.param)


def _of_notice(spec: JobSpec, known: Known) -> Iterable[Obstacle]:
    """Yield a warning: nodes may be faster than is assumed."""
    if known.base is None:
        return
    for stage in at_least_nodes(spec).by_stage:
        if message := why_not_saved_in_time(stage, known.base):
            yield Obstacle("grace_too_short", message, "resources.grace_seconds", is_final=False)
            return
