"""Which values a trial has: a pure function of the sweep, the trial's number and the trials that it learns from."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from typing import TYPE_CHECKING
from zlib import crc32

from schemas.sweep import Algorithm, Choices, Parameter, Parameters, Range, Scalar, SweepSpec, TrialState
from services.tracker.decide.trial import Trial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

DIGITS = 13
"""Hexadecimal digits that a float takes whole."""
STARTUP_TRIALS = 10
"""Trials at random before the estimator has enough to go by."""


def choose(spec: SweepSpec, number: int, history: Sequence[Trial]) -> Parameters:
    """Return the values of the trial. With `tpe` this takes tens of milliseconds."""
    return CHOOSERS[spec.algorithm](_in_order(spec), number, history)


def _in_order(spec: SweepSpec) -> SweepSpec:
    """Return the sweep with its parameters by name: a store may keep them in another order than they came in."""
    return spec.model_copy(update={"parameters": dict(sorted(spec.parameters.items()))})


def _of_grid(spec: SweepSpec, number: int, history: Sequence[Trial]) -> Parameters:
    """The last parameter, by its name, changes with every trial."""
    values: Parameters = {}
    for name, parameter in reversed(spec.parameters.items()):
        grid = parameter.grid
        assert grid is not None, "the sweep was checked"
        number, index = divmod(number, len(grid))
        values[name] = grid[index]
    return {name: values[name] for name in spec.parameters}


def _at_random(spec: SweepSpec, number: int, history: Sequence[Trial]) -> Parameters:
    return {
        name: _at(parameter, _share(f"{spec.seed}/{number}/{name}"))
        for name, parameter in spec.parameters.items()
    }


def _share(name: str) -> float:
    """Return a number from 0 to below 1 that follows from the name and looks like chance."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:DIGITS], 16) / float(16**DIGITS)


def _at(parameter: Parameter, share: float) -> Scalar:
    """Return the value that has so large a share of all values below it."""
    if (grid := parameter.grid) is not None:
        return grid[int(share * len(grid))]
    assert isinstance(parameter, Range), "choices are a grid"
    low, high = float(parameter.low), float(parameter.high)
    if parameter.log:
        value = exp(log(low) + share * (log(high) - log(low)))
        return round(value) if parameter.is_integer else _short(value, parameter)
    if parameter.is_integer:
        return int(low) + int(share * (int(high) - int(low) + 1))
    return _short(low + share * (high - low), parameter)


def _short(value: float, bounds: Range) -> float:
    """Six digits are enough, and people can read them."""
    return min(max(float(f"{value:.6g}"), float(bounds.low)), float(bounds.high))


def _by_estimate(spec: SweepSpec, number: int, history: Sequence[Trial]) -> Parameters:
    """Ask Optuna's estimator on a study that holds the history: nothing of it is kept between trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {name: _distribution(parameter) for name, parameter in spec.parameters.items()}
    sampler = optuna.samplers.TPESampler(
        seed=crc32(f"{spec.seed}/{number}".encode()), n_startup_trials=STARTUP_TRIALS, multivariate=True
    )
    study = optuna.create_study(sampler=sampler, direction="minimize")
    for trial in history:
        if trial.state not in (TrialState.COMPLETED, TrialState.PRUNED):
            continue
        is_complete = trial.state is TrialState.COMPLETED
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.COMPLETE if is_complete else optuna.trial.TrialState.PRUNED,
                params=dict(trial.parameters),
                distributions=distributions,
                value=trial.valid_loss if is_complete else None,
                intermediate_values={} if is_complete else trial.losses_by_percent,
            )
        )
    chosen = study.ask(distributions).params
    return {name: _as_asked(parameter, chosen[name]) for name, parameter in spec.parameters.items()}


def _distribution(parameter: Parameter) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, Choices):
        return CategoricalDistribution(parameter.choices)
    if parameter.is_integer:
        whole = int(parameter.low), int(parameter.high)
        return IntDistribution(*whole, log=parameter.log, step=int(parameter.step or 1))
    return FloatDistribution(
        float(parameter.low), float(parameter.high), log=parameter.log, step=parameter.step
    )


def _as_asked(parameter: Parameter, value: Scalar) -> Scalar:
    is_free = isinstance(parameter, Range) and parameter.step is None and not parameter.is_integer
    return _short(float(value), parameter) if is_free and isinstance(parameter, Range) else value


CHOOSERS: Mapping[Algorithm, Callable[[SweepSpec, int, Sequence[Trial]], Parameters]] = {
    "grid": _of_grid,
    "random": _at_random,
    "tpe": _by_estimate,
}
