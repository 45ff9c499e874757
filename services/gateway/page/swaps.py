"""The steps of a swap as a line: how long each took on the slowest replica, or which one failed. Pure."""

from dataclasses import dataclass
from typing import Literal

from schemas.deployment import DeploymentStep, ReplicaSteps, Swap
from services.gateway.deployments import Generation
from services.gateway.page import formats

ON_REPLICAS = (DeploymentStep.LOAD, DeploymentStep.READ_BACK, DeploymentStep.PROBE)
MEANINGS = {
    DeploymentStep.LOAD: "its files are fetched and checked, and each replica loads them",
    DeploymentStep.READ_BACK: "each replica lists it",
    DeploymentStep.PROBE: "each replica answers with finite numbers, an adapter not as its base model",
    DeploymentStep.ROUTE: "requests for the slot go there",
}


@dataclass(frozen=True)
class StepView:
    name: str
    text: str
    """How long it took, or why there is no time."""
    meaning: str
    """What the step does, and what is known of each replica."""
    state: Literal["done", "failed", "none"] = "done"


def step_line(generation: Generation | None) -> tuple[StepView, ...]:
    """Return the steps of a generation in their order; none where nothing is known of them."""
    if generation is None:
        return ()
    if generation.swap is not None:
        return tuple(_done(step, generation.swap) for step in DeploymentStep)
    if generation.failed_step is not None:
        return tuple(_of_failed(step, generation.failed_step) for step in DeploymentStep)
    return ()


def seconds_of(step: DeploymentStep, replica: ReplicaSteps) -> float:
    """Return how long a step took on the replica, in seconds; the fetch of the files is part of the load."""
    match step:
        case DeploymentStep.LOAD:
            return replica.load_seconds + (replica.fetch_seconds or 0.0)
        case DeploymentStep.READ_BACK:
            return replica.read_back_seconds
        case DeploymentStep.PROBE:
            return replica.probe_seconds
    raise ValueError(f"step {step} is none of a replica")


def _done(step: DeploymentStep, swap: Swap) -> StepView:
    meaning = MEANINGS[step]
    if step is DeploymentStep.ROUTE:
        return StepView(_name(step), formats.duration(swap.route_seconds), meaning)
    if not swap.replicas:
        return StepView(_name(step), formats.NONE, f"{meaning}: every replica had it already", "none")
    longest = max(seconds_of(step, each) for each in swap.replicas)
    each_replica = "; ".join(f"{each.replica_id} {_detail(step, each)}" for each in swap.replicas)
    return StepView(_name(step), formats.duration(longest), f"{meaning}: {each_replica}")


def _detail(step: DeploymentStep, replica: ReplicaSteps) -> str:
    text = formats.duration(seconds_of(step, replica))
    if step is not DeploymentStep.LOAD or replica.fetch_seconds is None:
        return text
    return f"{text}, of which {formats.duration(replica.fetch_seconds)} fetch"


def _of_failed(step: DeploymentStep, failed: DeploymentStep) -> StepView:
    order = tuple(DeploymentStep)
    if step is failed:
        return StepView(_name(step), "failed", MEANINGS[step], "failed")
    passed = order.index(step) < order.index(failed)
    return StepView(
        _name(step), "passed" if passed else formats.NONE, MEANINGS[step], "done" if passed else "none"
    )


def _name(step: DeploymentStep) -> str:
    return step.value.replace("_", " ")
