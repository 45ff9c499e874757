"""Where bytes lie is part of the contract: what is stored today must be found tomorrow."""

import pytest

from schemas import layout

KEYS = {
    layout.blob("5e1"): "blobs/5e1",
    layout.dataset("v1"): "datasets/v1/manifest.json",
    layout.dataset("v1", layout.part("5e1")): "datasets/v1/parts/5e1",
    layout.dataset("v1", layout.EXCERPTS): "datasets/v1/excerpts.json",
    layout.checkpoint("ftjob-1", 2, 30): "checkpoints/ftjob-1/a-ftjob-1-e2/30/manifest.json",
    layout.checkpoint("ftjob-1", 2, 30, layout.part("5e1")): "checkpoints/ftjob-1/a-ftjob-1-e2/30/parts/5e1",
    layout.checkpoints("ftjob-1", 2): "checkpoints/ftjob-1/a-ftjob-1-e2/",
    layout.base_model("b45"): "base-models/b45/manifest.json",
    layout.base_model("b45", layout.file("config.json")): "base-models/b45/files/config.json",
    layout.model("d16"): "models/d16/manifest.json",
    layout.model(
        "d16", layout.file("adapter_model.safetensors")
    ): "models/d16/files/adapter_model.safetensors",
    layout.evaluation("eval-1", "report.json"): "evals/eval-1/report.json",
    layout.log("ftjob-1", 2, 0, 7): "logs/ftjob-1/a-ftjob-1-e2/0/000007",
}


@pytest.mark.parametrize(("key", "frozen"), KEYS.items(), ids=KEYS.values())
def test_no_key_moves(key, frozen):
    assert key == frozen


def test_every_key_is_one_that_somebody_may_write():
    writable = {prefix for access in layout.ACCESS.values() for prefix in access.writes}
    assert [key for key in KEYS if not key.startswith(tuple(writable))] == []
