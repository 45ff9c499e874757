"""Whether activations are kept: the recipe's word first, then what the device has."""

import pytest

from schemas.specification import Recipe
from services.trainer_agent.protocol import PreflightDone
from services.trainer_agent.training import memory
from services.trainer_agent.training.memory import needs
from services.trainer_agent.training.network import build_network
from tests.training.jobs import ONE_PROCESS, a_recipe, an_order, carry_out, reports_of

GIB = 2**30


def keeps(directory, order) -> bool:
    [done] = reports_of(carry_out(directory, order), PreflightDone)
    return not done.preparation.gradient_checkpointing


@pytest.mark.parametrize(
    ("setting", "device_bytes", "kept"),
    [
        ("auto", None, True),
        ("auto", 2 * GIB, True),
        ("auto", GIB, False),
        (False, GIB, True),
        (True, None, False),
    ],
)
def test_activations_are_computed_again_where_the_recipe_says_so_or_the_device_is_small(
    inputs, tmp_path, monkeypatch, setting, device_bytes, kept
):
    monkeypatch.setattr(memory, "device_memory_bytes", lambda _device: device_bytes)
    word = Recipe(gradient_checkpointing=setting)
    recipe = a_recipe(
        num_epochs=1,
        gradient_checkpointing=word.gradient_checkpointing,
        gradient_checkpointing_auto=word.gradient_checkpointing_auto,
    )
    order = an_order(inputs, recipe)
    assert keeps(tmp_path / "work", order) is kept


def test_a_wider_window_needs_more(inputs):
    order = an_order(inputs)
    network = build_network(order.recipe, order.base_dir, ONE_PROCESS.device)
    assert needs(network, order, max_seq_length=192) > needs(network, order, max_seq_length=96) > GIB
