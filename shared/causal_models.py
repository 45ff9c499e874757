"""What training and a base model's registration must agree on about transformers' models.

Imports no torch: modules are known by the names of their classes.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal, TypeVar

from schemas.capabilities import LossForm

Attention = Literal["sdpa", "eager"]
INNER_SIZES = ("moe_intermediate_size", "intermediate_size", "n_inner", "ffn_dim")
"""Names that configurations have for the inner size of a layer's feed-forward part, of one expert first."""
Tensor = TypeVar("Tensor")


def attention_of(config: Any) -> Attention:
    """The fastest attention that computes what the model means; PyTorch's own leaves a cap of the scores out.

    Packed examples are kept apart by either. Raises KeyError where transformers has no such model.
    """
    is_capped = bool(getattr(config.get_text_config(), "attn_logit_softcapping", None))
    has_sdpa = model_class_of(config)._supports_sdpa  # noqa: SLF001 transformers has no public name for it
    return "sdpa" if has_sdpa and not is_capped else "eager"


def model_class_of(config: Any) -> Any:
    """The causal language model of a configuration. Raises KeyError where transformers has none."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def loss_form(config: Any) -> LossForm:
    """As the families' configurations name it: Gemma caps, Granite divides, Cohere multiplies."""
    text = config.get_text_config()
    divisor = getattr(text, "logits_scaling", None) or 1.0
    factor = getattr(text, "logit_scale", None) or 1.0
    cap = getattr(text, "final_logit_softcapping", None)
    return LossForm(scale=float(factor) / float(divisor), soft_cap=cap or None)


def first_size(config: Any, names: tuple[str, ...]) -> int:
    """The first of these that the configuration has; 0: none."""
    sizes = (getattr(config, name, None) for name in names)
    return next((size for size in sizes if type(size) is int), 0)


def plain_linears(model: Any) -> dict[str, Any]:
    """The matrices that an adapter can be added to, by name: all but the head, experts and routers."""
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if type(module).__name__ == "Linear" and module is not head and module.out_features > 1
    }


def converts_names(model: Any) -> bool:
    """Whether a loaded model's tensors have other names, or another form, than in its files."""
    return bool(getattr(model, "_weight_conversions", None))


def tied_names(model: Any) -> dict[str, str]:
    """Further names of parameters that have several, each with the one that `named_parameters` gives."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in every if first[id(parameter)] != name}


def as_in_files(model: Any, tensors: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Tensors of a loaded model by the names, and in the form, that its files have.

    names: of the tensors in the files; some leave the name of the model within the model out.
    """
    from transformers.core_model_loading import revert_weight_conversion

    prefix = f"{model.base_model_prefix}."
    return {
        name if name in names else name.removeprefix(prefix): tensor
        for name, tensor in revert_weight_conversion(model, dict(tensors)).items()
    }
