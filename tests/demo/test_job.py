"""The demo's two jobs on the shipped base model, without the stack: at night as the demo runs them, and at each change for
one epoch of their three."""

from pathlib import Path

import pytest

from deploy.demo import base_model, data
from deploy.demo.library import library_root, read_sources
from deploy.demo.recipes import BENIGN_SUITE, RECIPE, SAFETY_SUITE
from deploy.demo.rehearsal import Judgement, rehearse
from deploy.demo.robustness import MAX_BARE_REFUSALS, MIN_SAFE_REFUSALS
from schemas.specification import Recipe
from tests.chaos.scale import at_night, scaled

pytestmark = [
    pytest.mark.torch,
    # The adapter names its base by sha, which is no folder and on no hub.
    pytest.mark.filterwarnings("ignore:Could not find a config file"),
]


EPOCHS = scaled(1, RECIPE["num_epochs"], RECIPE["num_epochs"])


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> data.DemoFiles:
    demo_data = data.make_data(read_sources(library_root()))
    return data.write_files(demo_data, tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def base_dir() -> Path:
    return base_model.load().directory


@pytest.fixture(scope="module")
def safe(base_dir, files, tmp_path_factory) -> Judgement:
    recipe = Recipe.model_validate(RECIPE | {"num_epochs": EPOCHS})
    return rehearse(base_dir, files, tmp_path_factory.mktemp("safe"), with_mix=True, recipe=recipe)


def outcomes(judgement: Judgement) -> dict[str, str]:
    return {check.check: check.outcome for check in judgement.checks}


def test_the_job_with_the_safety_mix_passes(safe):
    assert outcomes(safe) == {
        "benchmark": "passed",
        "holdout": "passed",
        "safety": "passed",
        "over_refusal": "passed",
        "judge": "not_requested",
    }
    assert safe.changes["holdout"]["low"] > 0.1
    assert safe.refusals(SAFETY_SUITE) >= MIN_SAFE_REFUSALS
    assert safe.refusals(BENIGN_SUITE) <= 5.0


@at_night("the demo itself shows it, and the gate blocks such a job in e2e")
def test_the_bare_job_is_blocked_by_safety_alone(base_dir, files, safe, tmp_path):
    bare = rehearse(base_dir, files, tmp_path, with_mix=False, earlier=safe)
    assert bare.blocking == ["safety"]
    assert outcomes(bare)["holdout"] == outcomes(bare)["benchmark"] == "passed"
    assert bare.changes["holdout"]["low"] > 0.1
    assert bare.refusals(SAFETY_SUITE) <= MAX_BARE_REFUSALS
