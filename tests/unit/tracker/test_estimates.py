"""What Optuna is given of a sweep's history, and what is made of its answer."""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from schemas.sweep import Choices, Range, TrialState
from services.tracker.decide import search
from services.tracker.decide.trial import Trial
from tests.unit.tracker.sweep_world import a_sweep_spec

PARAMETERS = {
    "learning_rate": Range(low=1e-5, high=1e-2, log=True),
    "lora.alpha": Range(low=1, high=64, log=True),
    "lora.rank": Range(low=4, high=16, step=4),
    "num_epochs": Range(low=1, high=3),
    "schedule": Choices(choices=("cosine", "linear")),
    "warmup_ratio": Range(low=0.0, high=0.5, step=0.25),
}
VALUES = {
    "learning_rate": 1e-3,
    "lora.alpha": 32,
    "lora.rank": 8,
    "num_epochs": 2,
    "schedule": "linear",
    "warmup_ratio": 0.25,
}
SPEC = a_sweep_spec(algorithm="tpe", parameters=PARAMETERS)


def a_trial(number: int, state: TrialState, valid_loss: float | None = None) -> Trial:
    losses = ((10, 3.0), (20, 2.0))
    return Trial(
        "sweep-1",
        number,
        f"ftjob-{number}",
        VALUES,
        str(number),
        state,
        num_steps=200,
        losses=losses,
        valid_loss=valid_loss,
    )


HISTORY = [
    a_trial(0, TrialState.RUNNING),
    a_trial(1, TrialState.COMPLETED, 1.5),
    a_trial(2, TrialState.FAILED),
    a_trial(3, TrialState.PRUNED, 2.0),
]


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> optuna.Study:
    """The study that the next estimate is made with."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    monkeypatch.setattr(optuna, "create_study", lambda **settings: study)
    return study


def test_it_learns_the_loss_of_what_was_trained_and_the_curve_of_what_was_pruned(study: optuna.Study):
    search.choose(SPEC, 5, HISTORY)
    complete, pruned, asked = study.trials
    assert (complete.state.name, complete.value, complete.intermediate_values) == ("COMPLETE", 1.5, {})
    assert (pruned.state.name, pruned.value) == ("PRUNED", None)
    assert pruned.intermediate_values == {5: 3.0, 10: 2.0}
    assert complete.params == pruned.params == VALUES
    assert asked.state.name == "RUNNING"


def test_it_draws_from_the_parameters_as_they_were_asked_for(study: optuna.Study):
    search.choose(SPEC, 5, HISTORY)
    assert study.trials[0].distributions == {
        "learning_rate": FloatDistribution(1e-5, 1e-2, log=True),
        "lora.alpha": IntDistribution(1, 64, log=True),
        "lora.rank": IntDistribution(4, 16, step=4),
        "num_epochs": IntDistribution(1, 3),
        "schedule": CategoricalDistribution(("cosine", "linear")),
        "warmup_ratio": FloatDistribution(0.0, 0.5, step=0.25),
    }


def test_people_can_read_its_values(study: optuna.Study):
    values = search.choose(SPEC, 5, [])
    asked = study.trials[0].params
    assert values["learning_rate"] == float(f"{asked['learning_rate']:.6g}") != asked["learning_rate"]
    others = [name for name in PARAMETERS if name != "learning_rate"]
    assert [values[name] for name in others] == [asked[name] for name in others]
