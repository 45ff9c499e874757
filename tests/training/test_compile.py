"""Compiled layers learn what layers learn as they are written, and a resumed run of them ends in the same bytes."""

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters

from schemas.base import DeviceKind
from schemas.specification import LoraSpec, Method
from services.trainer_agent.protocol import PreflightDone, ResumeChecked, Saved, Stepped
from tests.chaos.scale import at_night
from tests.training.jobs import a_recipe, an_order, as_bundle, carry_out, model_sha256, reports_of
from tests.training.ranks import run_gang

WARNINGS = (
    "The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning",
    "`torch.jit.script_method` is deprecated:DeprecationWarning",
    ".*autograd.function.Function.* should not be instantiated:DeprecationWarning",
)
"""Of torch's compiler about itself."""

pytestmark = [
    pytest.mark.any_device,
    *(pytest.mark.filterwarnings(f"ignore:{warning}") for warning in WARNINGS),
    at_night("compiling takes a minute and more of a core"),
]

LORA = LoraSpec(rank=4)
RECIPES = {
    "lora": a_recipe(lora=LORA),
    "activations computed again": a_recipe(lora=LORA, gradient_checkpointing=True),
    "a window for each example": a_recipe(lora=LORA, packing=False),
    "all weights": a_recipe(method=Method.SFT, learning_rate=1e-3),
    "qlora": a_recipe(method=Method.QLORA, lora=LORA),
}
"""Without dropout: compiled layers draw other numbers."""
DROPOUT = a_recipe(compile=True)


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def losses(reports):
    return [each.loss for each in reports_of(reports, Stepped)]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_losses_are_those_of_layers_as_they_are_written(recipe, inputs, tmp_path):
    written = carry_out(tmp_path / "written", an_order(inputs, recipe))
    assert not counters["stats"]
    compiling = recipe.model_copy(update={"compile": True})
    compiled = carry_out(tmp_path / "compiled", an_order(inputs, compiling))
    [prepared] = reports_of(compiled, PreflightDone)
    assert prepared.preparation.compile
    assert "layers compiled" in prepared.preparation.summary
    assert counters["stats"]["unique_graphs"] >= 1
    assert losses(compiled) == pytest.approx(losses(written), rel=1e-5)


def test_a_resumed_run_ends_in_the_same_bytes(inputs, tmp_path):
    """Its layers are compiled again, by shapes that come in another order."""
    order = an_order(inputs, DROPOUT)
    whole = carry_out(tmp_path / "whole", order)
    saved = next(each for each in reports_of(whole, Saved) if each.step == 3)
    torch.compiler.reset()
    order = order.model_copy(update={"resume_dir": as_bundle(order, saved, tmp_path / "bundle")})
    resumed = carry_out(tmp_path / "resumed", order)
    [checked] = reports_of(resumed, ResumeChecked)
    assert checked.certificate.exact, checked.certificate.reason
    assert losses(resumed) == losses(whole)[3:]
    assert model_sha256(reports_of(resumed, Saved)[-1]) == model_sha256(reports_of(whole, Saved)[-1])


def test_two_processes_that_share_weights_learn_what_one_does(inputs, tmp_path):
    if inputs.device is not DeviceKind.CPU:
        pytest.skip("the processes of this test are of the CPU")
    recipe = a_recipe(method=Method.SFT, learning_rate=1e-3, compile=True)
    alone = carry_out(tmp_path / "alone", an_order(inputs, recipe))
    together = run_gang(tmp_path / "together", an_order(inputs, recipe, devices_per_node=2))
    assert losses(together) == pytest.approx(losses(alone), rel=1e-5)
