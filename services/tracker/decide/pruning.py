"""Whether a trial ends early, by the lowest validation loss of its bundles so far. Pure.

It is compared with the trials that it learns from, which were decided before it began. So it does not matter how fast
any of them trains, or whose nodes are taken away meanwhile.
"""

from collections.abc import Sequence
from statistics import median
from zlib import crc32

from schemas.sweep import PruningRule, PruningSpec, SweepSpec, TrialState
from services.tracker.decide.trial import Trial

COMPARED = (TrialState.COMPLETED, TrialState.PRUNED)


def why_pruned(spec: SweepSpec, trial: Trial, history: Sequence[Trial]) -> str | None:
    """Return the reason for people; None where the trial continues."""
    rule, others = spec.pruning, [each for each in history if each.state in COMPARED]
    if rule is None or not trial.num_steps or trial.lowest_loss is None:
        return None
    match rule.rule:
        case PruningRule.MEDIAN:
            return _by_median(rule, trial, others)
        case PruningRule.SUCCESSIVE_HALVING:
            return _at_rungs(rule, rungs(rule), trial, others)
        case PruningRule.HYPERBAND:
            bracket = bracket_of(spec.seed, rule, trial.number)
            rivals = [each for each in others if bracket_of(spec.seed, rule, each.number) == bracket]
            return _at_rungs(rule, rungs(rule)[bracket:], trial, rivals)


def _by_median(rule: PruningSpec, trial: Trial, others: Sequence[Trial]) -> str | None:
    if trial.progress < rule.after:
        return None
    lowest = [each.lowest_until(trial.progress) for each in others if each.progress >= trial.progress]
    known = [loss for loss in lowest if loss is not None]
    own = trial.lowest_loss
    if own is None or len(known) < rule.min_trials or own <= median(known):
        return None
    return (
        f"at {trial.progress:.0%} its lowest validation loss was {own:.4g}, the median of {len(known)} earlier "
        f"trials {median(known):.4g}"
    )


def rungs(rule: PruningSpec) -> tuple[float, ...]:
    """Return the parts of the run at which trials are compared."""
    parts = [rule.after]
    while (farther := round(parts[-1] * rule.reduction_factor, 9)) < 1:
        parts.append(farther)
    return tuple(parts)


def bracket_of(seed: int, rule: PruningSpec, number: int) -> int:
    """Return the bracket of a trial: as many trials begin in each as cost alike (Li et al., 2018)."""
    count = len(rungs(rule))
    shares = [
        -(-count * rule.reduction_factor ** (count - 1 - each) // (count - each)) for each in range(count)
    ]
    place = crc32(f"{seed}/{number}".encode()) % sum(shares)
    return next(each for each in range(count) if place < sum(shares[: each + 1]))


def _at_rungs(rule: PruningSpec, parts: Sequence[float], trial: Trial, others: Sequence[Trial]) -> str | None:
    """Asynchronous successive halving (Li et al., 2020): nobody is waited for."""
    for part in parts:
        own = trial.lowest_until(part)
        if trial.progress < part or own is None:
            continue
        lowest = (each.lowest_until(part) for each in others if each.progress >= part)
        known = sorted([loss for loss in lowest if loss is not None] + [own])
        places = max(1, len(known) // rule.reduction_factor)
        if own > known[places - 1]:
            return (
                f"at {part:.0%} its lowest validation loss was {own:.4g}, with which it is not among the best "
                f"{places} of {len(known)}"
            )
    return None
