"""Facts about transformers' models on which training and a base model's registration must agree.

The module imports no torch: it recognises modules by the names of their classes.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal, TypeVar

from schemas.capabilities import LossForm

Attention = Literal["sdpa", "eager"]
INNER_SIZES = ("moe_intermediate_size", "intermediate_size", "n_inner", "ffn_dim")
"""Configuration names for the inner size of a layer's feed-forward part; the name for one expert comes first."""
LINEAR_CLASSES = frozenset({"Linear", "Linear4bit"})
Tensor = TypeVar("Tensor")


def attention_of(config: Any) -> Attention:
    """Return the fastest attention that is correct for the model; PyTorch's own leaves out a cap of the scores.

    Either keeps packed examples apart. Raises KeyError if transformers has no such model.
    """
    is_capped = bool(getattr(config.get_text_config(), "attn_logit_softcapping", None))
    has_sdpa = model_class_of(config)._supports_sdpa  # noqa: SLF001 transformers has no public name for it
    return "sdpa" if has_sdpa and not is_capped else "eager"


def model_class_of(config: Any) -> Any:
    """Return the class of the causal language model for a configuration. Raises KeyError if transformers has none."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def loss_form(config: Any) -> LossForm:
    """Return scale and cap of the logits, by the families' names: Gemma caps, Granite divides, Cohere multiplies."""
    text = config.get_text_config()
    divisor = getattr(text, "logits_scaling", None) or 1.0
    factor = getattr(text, "logit_scale", None) or 1.0
    cap = getattr(text, "final_logit_softcapping", None)
    return LossForm(scale=float(factor) / float(divisor), soft_cap=cap or None)


def first_size(config: Any, names: tuple[str, ...]) -> int:
    """Return the first of these sizes that the configuration has, or 0 if it has none."""
    sizes = (getattr(config, name, None) for name in names)
    return next((size for size in sizes if type(size) is int), 0)


def plain_linears(model: Any) -> dict[str, Any]:
    """Return the linear modules that an adapter can be added to, by name: all but the head, experts and routers."""
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if type(module).__name__ in LINEAR_CLASSES and module is not head and module.out_features > 1
    }


def converts_names(model: Any) -> bool:
    """Return whether a loaded model's tensors have other names, or another form, than in its files."""
    return bool(getattr(model, "_weight_conversions", None))


def joins_for_files(model: Any) -> bool:
    """Return whether some tensor of a loaded model's files is made of several of the model's."""
    conversions = getattr(model, "_weight_conversions", None) or ()
    return any(len(each.target_patterns) > 1 for each in conversions)


def tied_names(model: Any) -> dict[str, str]:
    """Map each further name of a parameter that has several to the name that `named_parameters` gives."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in every if first[id(parameter)] != name}


def as_in_files(model: Any, tensors: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Return tensors of a loaded model by the names, and in the form, that its files have.

    `names` are those of the tensors in the files; some files leave out the prefix of the inner base model.
    """
    from transformers.core_model_loading import revert_weight_conversion

    prefix = f"{model.base_model_prefix}."
    return {
        name if name in names else name.removeprefix(prefix): tensor
        for name, tensor in revert_weight_conversion(model, dict(tensors)).items()
    }
