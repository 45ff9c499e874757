"""A model whose layers are spread over several devices scores as on one, and is refused where they are not there."""

from pathlib import Path

import pytest
import torch
from accelerate import dispatch_model

from services.evaluator.scoring import models
from services.evaluator.scoring.order import Candidate, HoldoutPart, Side, WorkOrder
from services.evaluator.scoring.run import run
from services.evaluator.scoring.scorer import Scorer
from tests.scoring.tiny import WORDS, question

GPUS = torch.cuda.device_count()


@pytest.fixture
def order(base_path, template_sha256, adapter_path, rows) -> WorkOrder:
    holdout = rows("holdout.jsonl", [
        {"messages": [question(word), {"role": "assistant", "content": "alpha"}]} for word in WORDS
    ])  # fmt: skip
    part = HoldoutPart(name="holdout", path=str(holdout), sides=(Side.BASE, Side.CANDIDATE))
    return WorkOrder(
        base_path=str(base_path),
        template_sha256=template_sha256,
        candidate=Candidate(kind="adapter", path=str(adapter_path), rank=8),
        parts=(part, part.model_copy(update={"name": "perplexity", "metric": "perplexity"})),
        max_new_tokens=12,
    )


def items_of(order: WorkOrder, work_dir: Path) -> dict:
    scores = run(order, work_dir, lambda report: None)
    assert scores.failure is None, scores.failure
    assert len(scores.parts) == 4
    return {(part.part, part.side): part.items for part in scores.parts}


def _with_hooks(directory: Path, order: WorkOrder):
    """The model with the hooks that move a batch from device to device, all of which are this CPU."""
    model = _load(directory, order)
    layers = (f"model.layers.{number}" for number in range(model.config.num_hidden_layers))
    names = ("model.embed_tokens", "model.rotary_emb", *layers, "model.norm", "lm_head")
    places = dict.fromkeys(names, "cpu")
    keys = model._skip_keys_device_placement
    return dispatch_model(model, places, main_device="cpu", force_hooks=True, skip_keys=keys)


_load = models._load


def test_scores_are_the_same_where_batches_move_from_layer_to_layer(order, tmp_path, monkeypatch):
    expected = items_of(order, tmp_path / "one")
    monkeypatch.setattr(models, "_load", _with_hooks)
    assert items_of(order, tmp_path / "several") == expected


def test_fewer_gpus_than_the_order_has_end_the_child_with_their_number(order, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    asked = order.model_copy(update={"device": "cuda", "num_devices": 2})
    with pytest.raises(MemoryError, match="found 1 GPUs, expected 2"):
        models.places_of(asked)


def test_on_a_cpu_devices_are_places_and_the_model_is_whole(order):
    assert models.places_of(order.model_copy(update={"num_devices": 2})) == {}


@pytest.mark.gpu
@pytest.mark.skipif(GPUS < 2, reason="needs two NVIDIA GPUs")
def test_scores_are_the_same_on_two_gpus(order, tmp_path):
    on_gpu = order.model_copy(update={"device": "cuda"})
    scorer: Scorer = models.Models(on_gpu.model_copy(update={"num_devices": 2})).scorer
    assert {parameter.device.index for parameter in scorer.model.parameters()} == {0, 1}
    expected = items_of(on_gpu, tmp_path / "one")
    assert items_of(on_gpu.model_copy(update={"num_devices": 2}), tmp_path / "two") == expected
