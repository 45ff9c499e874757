"""Each family with each method: what its line of docs/families.md says, and what its files hold."""

import json
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.training.families import COLUMNS, METHODS, Base, build, line, recipe_of, trial
from schemas.base import FailureClass
from schemas.specification import Method
from services.trainer_agent.protocol import Ended, Outcome, ResumeChecked, Saved
from tests.families import FAMILIES
from tests.training.jobs import Inputs, an_order, as_bundle, carry_out, model_sha256, reports_of

# PEFT looks for the base by the sha that an adapter names it by.
pytestmark = pytest.mark.filterwarnings("ignore:Could not find a config file")

DOCS = Path(__file__).parents[2] / "docs" / "families.md"
WITH_OTHER_NAMES = ("Qwen 3 MoE", "Mixtral")


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def base_of(tmp_path_factory):
    @cache
    def base(family: str) -> Base:
        return build(family, tmp_path_factory.mktemp("family"))

    return base


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_does_what_its_line_of_the_table_says(tmp_path, family):
    lines = [each for each in DOCS.read_text().splitlines() if each.startswith(f"| {family} |")]
    assert lines == [line(family, tmp_path)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_does_on_a_gpu_what_it_does_on_a_cpu(tmp_path, base_of, family, method):
    verdict = trial(base_of(family), method, tmp_path, device="cuda").verdict
    assert verdict == "yes" or verdict.startswith("refused: ")


def test_every_line_says_yes_or_a_reason():
    lines = [each.removesuffix(" |") for each in DOCS.read_text().splitlines() if each.startswith("| ")]
    rows = [each.split(" | ") for each in lines]
    families = [row for row in rows if row[0].removeprefix("| ") in FAMILIES]
    assert [row[0].removeprefix("| ") for row in families] == list(FAMILIES)
    verdicts = [cell for row in families for cell in row[len(COLUMNS) : len(COLUMNS) + 2]]
    assert all(cell == "yes" or cell.startswith("refused: ") for cell in verdicts)
    assert verdicts.count("yes") >= 2 * 12


@pytest.mark.parametrize("family", ["Llama", *WITH_OTHER_NAMES])
def test_a_full_model_continues_from_its_bundle_exactly(base_of, tmp_path, family):
    recipe = recipe_of(Method.SFT).model_copy(update={"num_epochs": 2})
    order = an_order(base_of(family).inputs, recipe)
    whole = reports_of(carry_out(tmp_path / "whole", order), Saved)
    bundle = as_bundle(order, whole[0], tmp_path / "bundle")
    later = order.model_copy(update={"attempt": 2, "resume_dir": bundle})
    reports = carry_out(tmp_path / "later", later)
    [checked] = reports_of(reports, ResumeChecked)
    assert checked.certificate.exact, checked.certificate.reason
    assert model_sha256(reports_of(reports, Saved)[-1]) == model_sha256(whole[-1])


def trained_file(inputs: Inputs, directory: Path) -> dict[str, torch.Tensor]:
    saved = reports_of(carry_out(directory, an_order(inputs, recipe_of(Method.SFT))), Saved)[-1]
    return load_file(saved.directory / "model" / "model.safetensors")


def rewrite(inputs: Inputs, directory: Path, tensors: dict[str, torch.Tensor]) -> Inputs:
    """The same base model with these tensors in its file."""
    base_dir = Path(shutil.copytree(inputs.base_dir, directory))
    save_file(tensors, base_dir / "model.safetensors", metadata={"format": "pt"})
    return Inputs(base_dir, inputs.dataset_dir)


def test_a_full_model_has_the_names_of_its_base_and_what_is_not_trained(base_of, tmp_path):
    """As GPT-2's file on the hub: without the inner model's name, with a buffer."""
    inputs = base_of("GPT-2").inputs
    mask = torch.ones(1, 1, 4, 4)
    shorter = {
        name.removeprefix("transformer."): tensor
        for name, tensor in load_file(inputs.base_dir / "model.safetensors").items()
    }
    released = rewrite(inputs, tmp_path / "base", shorter | {"h.0.attn.bias": mask})
    trained = trained_file(released, tmp_path / "work")
    assert trained.keys() == shorter.keys() | {"h.0.attn.bias"}
    assert torch.equal(trained["h.0.attn.bias"], mask)
    assert not torch.equal(trained["h.0.attn.c_attn.weight"], shorter["h.0.attn.c_attn.weight"])


def test_a_tied_head_is_written_where_the_base_has_one(base_of, tmp_path):
    inputs = base_of("Qwen 2").inputs
    tensors = load_file(inputs.base_dir / "model.safetensors")
    assert "lm_head.weight" not in trained_file(inputs, tmp_path / "without")
    table = tensors["model.embed_tokens.weight"]
    released = rewrite(inputs, tmp_path / "base", tensors | {"lm_head.weight": table.clone()})
    trained = trained_file(released, tmp_path / "with")
    assert torch.equal(trained["lm_head.weight"], trained["model.embed_tokens.weight"])
    assert not torch.equal(trained["lm_head.weight"], table)


def test_files_that_no_model_can_be_made_of_are_the_users_failure(base_of, tmp_path):
    inputs = base_of("Llama").inputs
    base_dir = Path(shutil.copytree(inputs.base_dir, tmp_path / "base"))
    config = json.loads((base_dir / "config.json").read_text())
    (base_dir / "config.json").write_text(json.dumps(config | {"model_type": "never_heard_of"}))
    order = an_order(Inputs(base_dir, inputs.dataset_dir), recipe_of(Method.SFT))
    [ended] = reports_of(carry_out(tmp_path / "work", order), Ended)
    assert (ended.outcome, ended.failure_class) == (Outcome.FAILED, FailureClass.USER)
    assert "cannot be loaded" in ended.message
    assert "never_heard_of" in ended.message
