import pytest

from schemas.capabilities import LossForm
from schemas.specification import Method
from services.registry.decide.base_models import BadBaseModel
from services.registry.decide.capabilities import capabilities
from shared.model_files.tensors import Tensor
from tests.model_files import BASE_SHAPES
from tests.unit.registry.builders import an_inspection

LORA, SFT = Method.LORA, Method.SFT


def tensors(shapes=BASE_SHAPES, dtype="BF16"):
    return tuple(Tensor(name, dtype, shape) for name, shape in shapes.items())


def capabilities_of(shapes=BASE_SHAPES, **changes):
    return capabilities(an_inspection(**changes), tensors(shapes))


def test_a_plain_model_can_be_trained_with_every_method():
    result = capabilities_of()
    assert result.refused_methods == {}
    assert (result.lora_targets, result.lora_values_per_rank) == (("q_proj",), 32 + 64)
    assert (result.family, result.attention, result.weights_dtype) == ("llama", "sdpa", "BF16")
    assert result.rows == {"one turn": "", "tools": "template.tools: it leaves the calls out"}
    assert result.marks_answers is False


def test_the_sizes_of_the_model_are_kept():
    sizes = {
        "num_layers": 2,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_experts": 4,
        "vocab_size": 32,
        "cache_values_per_token": 6,
        "tie_word_embeddings": True,
        "converts_names": True,
    }
    assert capabilities_of(**sizes).model_dump(include=set(sizes)) == sizes


def test_a_class_that_vllm_does_not_know_is_served_where_its_attention_can_be_replaced():
    new = ("NobodyKnowsForCausalLM",)
    assert capabilities_of(architectures=new, takes_attention=True).refused_methods == {}
    assert capabilities_of(architectures=new, takes_attention=False).refused_methods.keys() == {LORA, SFT}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quantization": "mxfp4"}, "quantised (mxfp4)"),
        ({"is_of_text": False}, "images or sounds"),
        ({"loss": None}, "logits are not its head's output"),
        ({"architectures": ("BambaForCausalLM",), "takes_attention": True}, "vLLM does not serve Bamba"),
        ({"architectures": ("Olmo2ForCausalLM",), "takes_attention": False}, "vLLM does not serve Olmo2"),
    ],
)
def test_what_no_method_can_train_is_said_of_each(changes, reason):
    refused = capabilities_of(**changes).refused_methods
    assert refused.keys() == {LORA, SFT}
    assert all(reason in sentence for sentence in refused.values())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ("GPT2LMHeadModel",)}, "without adapters"),
        ({"linears": {}}, "no plain linear layers"),
        ({"linears": {"h.0.attn": (32, 64)}}, "no matrix for the layers h.0.attn"),
        ({"linears": {"model.layers.0.self_attn.q_proj": (64, 32)}}, "no matrix for the layers"),
    ],
)
def test_adapters_are_refused_where_nothing_could_load_them(changes, reason):
    refused = capabilities_of(**changes).refused_methods
    assert refused.keys() == {LORA}
    assert reason in refused[LORA]


@pytest.mark.parametrize("written", [{"model.experts": (4, 8)}, {"model.norm.weight": (32,)}])
def test_all_weights_are_refused_where_their_file_would_not_be_the_bases(written):
    refused = capabilities_of(written=written).refused_methods
    assert refused.keys() == {SFT}
    assert "other tensors than its weights in memory" in refused[SFT]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"problem": "transformers has none"}, "llama: transformers has none"),
        ({"missing": ("lm_head.weight",)}, "missing from the files: lm_head.weight$"),
        ({"missing": tuple("dcba")}, "missing from the files: a, b, c and 1 more$"),
    ],
)
def test_files_that_make_no_model_are_refused(changes, reason):
    with pytest.raises(BadBaseModel, match=reason):
        capabilities_of(**changes)


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ([("BF16", 3), ("F32", 2), ("F32", 2)], "F32"),
        ([("F32", 1), ("F32", 1), ("BF16", 3)], "BF16"),
        ([("F16", 1)], "F16"),
        ([], ""),
    ],
)
def test_the_type_of_a_models_weights_is_that_of_most_values(sizes, dtype):
    files = tuple(Tensor(f"w{number}", each, (2, rows)) for number, (each, rows) in enumerate(sizes))
    assert capabilities(an_inspection(), files).weights_dtype == dtype


def test_a_loss_form_is_kept():
    form = LossForm(scale=0.25, soft_cap=30.0)
    assert capabilities_of(loss=form).loss == form
