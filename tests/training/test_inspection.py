"""What is found of each family's files at registration, without their weights."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from schemas.capabilities import BaseCapabilities, LossForm
from schemas.specification import Method
from services.registry.clients.mirror import describe
from services.registry.decide.base_models import BadBaseModel
from services.registry.decide.capabilities import capabilities
from services.registry.inspection.networks import inspect
from shared.chat.probes import KINDS
from tests.chaos import stand_ins
from tests.families import FAMILIES, build_family
from tests.tiny_model import CHAT_TEMPLATE, build_tiny_model

OF_ATTENTION = ("k_proj", "o_proj", "q_proj", "v_proj")
EXPERTS = {"Qwen 3 MoE", "Mixtral", "gpt-oss"}


def inspected(directory: Path) -> BaseCapabilities:
    return capabilities(inspect(directory), describe(directory, "tiny", "directory")[1])


def change_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_is_found_trainable_or_refused_with_the_reason(name, tmp_path):
    base = inspected(build_family(tmp_path / "base", name))
    assert base.family == FAMILIES[name].model_type
    assert base.refused_methods == (
        {Method.LORA: "vLLM serves GPT2LMHeadModel without adapters"} if name == "GPT-2" else {}
    )
    assert (base.num_layers, base.hidden_size, base.vocab_size) == (2, 128, 512)
    assert base.attention == ("eager" if name in {"gpt-oss", "Gemma 2"} else "sdpa")
    forms = {"Gemma 2": LossForm(soft_cap=30.0), "Granite": LossForm(scale=0.25)}
    assert base.loss == forms.get(name, LossForm())
    assert base.converts_names == (name in {"Qwen 3 MoE", "Mixtral"})
    assert base.tie_word_embeddings == (name in ("Qwen 2", "Gemma 2", "Gemma 3"))
    assert base.cache_values_per_token == 2 * 2 * 64 * (2 if name == "GPT-2" else 1)
    if name in EXPERTS:
        assert base.num_experts == 4
        assert base.lora_targets == OF_ATTENTION


def test_a_head_that_no_form_describes_is_refused(tmp_path, monkeypatch):
    directory = build_family(tmp_path / "base", "Granite")
    monkeypatch.setattr("services.registry.inspection.networks.loss_form", lambda _: LossForm())
    base = inspected(directory)
    assert "logits are not its head's output" in base.refused_methods[Method.SFT]


@pytest.mark.parametrize(
    ("template", "marks"),
    [
        (CHAT_TEMPLATE, True),
        (CHAT_TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", ""), False),
        (None, None),
    ],
)
def test_a_template_is_asked_whether_it_marks_answers(tmp_path, template, marks):
    directory = build_family(tmp_path / "base", "Llama")
    (directory / "chat_template.jinja").unlink()
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    assert inspected(directory).marks_answers is marks


def test_files_that_lack_tensors_are_refused(tmp_path):
    directory = build_family(tmp_path / "base", "Qwen 3 MoE")
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadBaseModel):
        inspected(directory)


def test_files_without_the_name_of_the_inner_model_are_trained_all_the_same(tmp_path):
    """GPT-2's on the hub have `h.0.attn.c_attn.weight`, and buffers that nobody trains."""
    directory = build_family(tmp_path / "base", "GPT-2")
    tensors = load_file(directory / "model.safetensors")
    shorter = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file(shorter, directory / "model.safetensors", metadata={"format": "pt"})
    assert inspected(directory).refused_methods.keys() == {Method.LORA}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "never_heard_of"}, "never_heard_of"),
        ({"model_type": "t5", "num_layers": 1}, "no causal language model of this family"),
        ({"hidden_size": 96}, "loading it"),
        ({"num_attention_heads": "four"}, "config.json"),
    ],
)
def test_files_that_transformers_cannot_load_are_refused_with_its_words(tmp_path, changes, reason):
    directory = build_family(tmp_path / "base", "Llama")
    change_config(directory, **changes)
    with pytest.raises(BadBaseModel, match=reason):
        inspected(directory)


def test_quantised_weights_and_models_of_images_are_served_but_not_trained(tmp_path):
    directory = build_family(tmp_path / "base", "gpt-oss")
    change_config(directory, quantization_config={"quant_method": "mxfp4"})
    refused = inspected(directory).refused_methods
    assert refused.keys() == {Method.LORA, Method.SFT}
    assert "quantised (mxfp4)" in refused[Method.SFT]


async def test_the_stand_in_of_chaos_tests_finds_the_same_of_a_llama(tmp_path):
    """But for the kinds of rows: it takes the template to render them all."""
    directory = build_tiny_model(tmp_path / "base", text="a few words to learn from")
    inspection = await stand_ins.inspect(directory)
    assert inspection == inspect(directory).model_copy(update={"rows": dict.fromkeys(KINDS, "")})
