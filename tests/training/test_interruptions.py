"""A run of each method that is killed, resumed, stopped and resumed ends in the bytes of one that nobody interrupted."""

import signal
from dataclasses import dataclass

import pytest

from schemas.specification import Method, Recipe
from services.trainer_agent.protocol import (
    BundleKind,
    Ended,
    Outcome,
    ReferenceComputed,
    ResumeChecked,
    Saved,
    Stepped,
)
from tests.chaos.scale import at_night
from tests.training.jobs import (
    Inputs,
    a_recipe,
    an_order,
    as_bundle,
    carry_out,
    log_in,
    model_sha256,
    reports_in,
    reports_of,
    wait_for_exit,
    wait_for_step,
)
from tests.training.ranks import fork_child

pytestmark = pytest.mark.any_device

FULL = {"weights": "full", "learning_rate": 1e-3}
RECIPES = {
    "sft": a_recipe(method=Method.SFT, learning_rate=1e-3),
    "qlora": a_recipe(method=Method.QLORA),
    "dpo adapter": a_recipe(method=Method.DPO),
    "dpo full": a_recipe(method=Method.DPO, **FULL),
    "dpo nf4": a_recipe(method=Method.DPO, quantization="nf4"),
    "cpt adapter": a_recipe(method=Method.CPT, weights="adapter"),
    "cpt full": a_recipe(method=Method.CPT, **FULL),
    "cpt nf4": a_recipe(method=Method.CPT, weights="adapter", quantization="nf4"),
}
"""Of lora, test_resume.py tries more places."""
EACH_CHANGE = ("sft", "qlora", "dpo adapter", "cpt full")
"""With these each method and each kind of weights comes at least once."""
NIGHT = at_night("the others have each method and each kind of weights")


@dataclass(frozen=True)
class Case:
    recipe: Recipe
    inputs: Inputs

    def order(self, **changes):
        return an_order(self.inputs, self.recipe, **changes)


@pytest.fixture(params=[pytest.param(name, marks=[] if name in EACH_CHANGE else [NIGHT]) for name in RECIPES])
def case(request, inputs, texts, preferences):
    recipe = RECIPES[request.param]
    files = {Method.CPT: texts, Method.DPO: preferences}
    return Case(recipe, files.get(recipe.method, inputs))


def test_a_kill_and_a_notice_change_no_byte(case, tmp_path, monkeypatch):
    """The bundle of step 3 is written before the kill; from the step after it on, each waits for what comes."""
    whole = carry_out(tmp_path / "whole", case.order())
    monkeypatch.setenv("FAILPOINTS", "trainer.step.end=stall:0.3@4")
    killed = killed_after_step_3(case, tmp_path)
    computed = [each.path for each in reports_of(killed, ReferenceComputed)]
    reference = computed[0] if computed else None
    monkeypatch.setenv("FAILPOINTS", "trainer.step.end=stall:0.3@2")
    order = case.order(attempt=2, resume_dir=newest_bundle(case, tmp_path, killed), reference=reference)
    stopped = stopped_after_step_5(tmp_path, order)
    monkeypatch.delenv("FAILPOINTS")
    order = case.order(attempt=3, resume_dir=newest_bundle(case, tmp_path, stopped), reference=reference)
    last = carry_out(tmp_path / "last", order)
    for resumed in (stopped, last):
        [checked] = reports_of(resumed, ResumeChecked)
        assert checked.certificate.exact, checked.certificate.reason
        assert not reports_of(resumed, ReferenceComputed)
    [ended], *ends = reports_of(last, Ended), *(reports_of(reports, Saved)[-1] for reports in (whole, last))
    assert ended.outcome is Outcome.COMPLETED
    assert model_sha256(ends[0]) == model_sha256(ends[1])
    assert ends[0].metrics == ends[1].metrics


def killed_after_step_3(case, tmp_path):
    child = fork_child(tmp_path / "killed", case.order())
    wait_for_step(child, tmp_path / "killed", 3, of=Saved)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    reports = reports_in(tmp_path / "killed")
    assert not reports_of(reports, Ended)
    return reports


def stopped_after_step_5(tmp_path, order):
    work_dir = tmp_path / "stopped"
    child = fork_child(work_dir, order)
    wait_for_step(child, work_dir, 5)
    child.terminate()
    assert wait_for_exit(child, work_dir) == 143, log_in(work_dir)
    reports = reports_in(work_dir)
    saved = reports_of(reports, Saved)[-1]
    assert (saved.bundle, saved.step) == (BundleKind.EMERGENCY, reports_of(reports, Stepped)[-1].step)
    return reports


def newest_bundle(case, tmp_path, reports):
    saved = reports_of(reports, Saved)[-1]
    return as_bundle(case.order(), saved, tmp_path / f"bundle-{saved.step}")
