"""What a training process chooses where its recipe leaves it open, by what its device has."""

import pytest

from schemas.specification import Recipe, ShardingSpec
from schemas.training import Preparation
from services.trainer_agent.protocol import PreflightDone, ResumeChecked, Saved
from services.trainer_agent.training import memory
from services.trainer_agent.training.memory import estimated_bytes, has_all_by_node
from services.trainer_agent.training.network import build_network
from tests.training.jobs import (
    ONE_PROCESS,
    a_recipe,
    an_order,
    as_bundle,
    carry_out,
    model_sha256,
    reports_of,
)

GIB = 2**30


def model_of(reports) -> str:
    return model_sha256(reports_of(reports, Saved)[-1])


def prepared(reports) -> Preparation:
    [done] = reports_of(reports, PreflightDone)
    return done.preparation


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
    assert prepared(carry_out(tmp_path / "work", order)).gradient_checkpointing is not kept


def test_a_wider_window_needs_more(inputs):
    order = an_order(inputs)
    network = build_network(order.recipe, order.base_dir, ONE_PROCESS.device)
    wide, narrow = (estimated_bytes(network, order, max_seq_length=length) for length in (192, 96))
    assert wide > narrow > GIB


@pytest.mark.parametrize(
    ("nodes", "library", "device_bytes", "by_node"),
    [
        (2, "fsdp2", None, True),
        (2, "fsdp2", 2 * GIB, True),
        (2, "fsdp2", GIB, False),
        (1, "fsdp2", None, False),
        (2, "deepspeed", None, False),
    ],
)
def test_each_of_several_nodes_has_all_weights_where_its_devices_hold_them(
    inputs, monkeypatch, nodes, library, device_bytes, by_node
):
    monkeypatch.setattr(memory, "device_memory_bytes", lambda _device: device_bytes)
    order = an_order(inputs, a_recipe(sharding=ShardingSpec(library=library)), nodes=nodes)
    network = build_network(order.recipe, order.base_dir, ONE_PROCESS.device)
    assert has_all_by_node(network, order, ONE_PROCESS, max_seq_length=96) is by_node


class TestMicroBatches:
    OPEN = a_recipe(num_epochs=1, micro_batch_size=1, micro_batch_size_auto=True)

    @pytest.fixture
    def give(self, monkeypatch):
        def has(num_bytes: int | None) -> None:
            monkeypatch.setattr(memory, "device_memory_bytes", lambda _device: num_bytes)

        return has

    def test_they_are_as_large_as_the_device_holds_and_of_one_window_on_a_cpu(self, inputs, tmp_path, give):
        order = an_order(inputs, self.OPEN)
        sizes = {}
        for name, num_bytes in (("cpu", None), ("large", 4 * GIB), ("small", GIB)):
            give(num_bytes)
            reports = carry_out(tmp_path / name, order)
            sizes[name] = prepared(reports).micro_batch_size
            assert GIB < prepared(reports).estimated_memory_bytes < 2 * GIB
        assert sizes == {"cpu": 1, "large": 4, "small": 1}

    def test_a_resumed_run_keeps_those_of_its_bundle_or_says_that_it_has_others(self, inputs, tmp_path, give):
        give(GIB)
        whole = carry_out(tmp_path / "whole", an_order(inputs, self.OPEN))
        bundle = as_bundle(an_order(inputs, self.OPEN), reports_of(whole, Saved)[0], tmp_path / "bundle")
        order = an_order(inputs, self.OPEN, resume_dir=bundle, attempt=2)
        give(4 * GIB)
        resumed = carry_out(tmp_path / "resumed", order)
        [checked] = reports_of(resumed, ResumeChecked)
        assert checked.certificate.exact, checked.certificate.reason
        assert model_of(resumed) == model_of(whole)
        recipe = self.OPEN.model_copy(update={"micro_batch_size": 4, "micro_batch_size_auto": False})
        other = carry_out(tmp_path / "other", order.model_copy(update={"recipe": recipe}))
        [checked] = reports_of(other, ResumeChecked)
        assert checked.certificate.reason == "windows per micro batch: expected 1, found 4"
