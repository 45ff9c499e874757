"""What a base model can do, from what its inspection showed. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from schemas.capabilities import BaseCapabilities
from schemas.serving import is_served, is_served_with_adapters
from schemas.specification import Method
from services.registry.decide.base_models import BadBaseModel
from services.registry.model import Inspection
from shared.model_files.tensors import Tensor, shapes_of

Shapes = Mapping[str, tuple[int, ...]]
SHOWN = 3
"""Names in a sentence."""


def capabilities(inspection: Inspection, tensors: Sequence[Tensor]) -> BaseCapabilities:
    """Return what a base model can do. Raises BadBaseModel for files that make no model.

    tensors: those in the files.
    """
    if inspection.problem:
        raise BadBaseModel(f"{inspection.family or 'its family'}: {inspection.problem}")
    if inspection.missing and not inspection.quantization:
        raise BadBaseModel(f"tensors are missing from the files: {_listed(inspection.missing)}")
    shapes = shapes_of(tensors)
    refused = {method: _refusal(method, inspection, shapes) for method in (Method.LORA, Method.SFT)}
    return BaseCapabilities(
        family=inspection.family,
        architecture=inspection.architecture,
        num_layers=inspection.num_layers,
        hidden_size=inspection.hidden_size,
        intermediate_size=inspection.intermediate_size,
        num_experts=inspection.num_experts,
        vocab_size=inspection.vocab_size,
        tie_word_embeddings=inspection.tie_word_embeddings,
        weights_dtype=_main_dtype(tensors),
        attention=inspection.attention,
        loss=inspection.loss,
        lora_targets=tuple(sorted({name.rpartition(".")[2] for name in inspection.linears})),
        lora_values_per_rank=sum(sum(shape) for shape in inspection.linears.values()),
        converts_names=inspection.converts_names,
        cache_values_per_token=inspection.cache_values_per_token,
        refused_methods={method: reason for method, reason in refused.items() if reason},
        rows=dict(inspection.rows),
        marks_answers=inspection.marks_answers,
    )


def _refusal(method: Method, inspection: Inspection, shapes: Shapes) -> str:
    """Return why the base cannot be trained with the method; empty where it can."""
    return _of_any_method(inspection) or (
        _of_adapters(inspection, shapes) if method is Method.LORA else _of_weights(inspection, shapes)
    )


def _of_any_method(inspection: Inspection) -> str:
    if inspection.quantization:
        return f"its weights are quantised ({inspection.quantization}); register the same model with plain weights"
    if not inspection.is_of_text:
        return "it also reads images or sounds; models of text alone are trained"
    if inspection.loss is None:
        return (
            "its logits are not its head's output, scaled or soft-capped, which is what the loss is made of"
        )
    if not any(
        is_served(name, takes_attention=inspection.takes_attention) for name in inspection.architectures
    ):
        return (
            f"vLLM does not serve {_listed(inspection.architectures)}, so that nothing trained could answer"
        )
    return ""


def _of_adapters(inspection: Inspection, shapes: Shapes) -> str:
    takes = inspection.takes_attention
    if not any(is_served_with_adapters(name, takes_attention=takes) for name in inspection.architectures):
        return f"vLLM serves {_listed(inspection.architectures)} without adapters"
    if not inspection.linears:
        return "it has no plain linear layers, which adapters are added to"
    other = [name for name, shape in inspection.linears.items() if shapes.get(f"{name}.weight") != shape]
    return f"its files have no matrix for the layers {_listed(other)}" if other else ""


def _of_weights(inspection: Inspection, shapes: Shapes) -> str:
    other = [name for name, shape in inspection.written.items() if shapes.get(name) != shape]
    return f"its files have other tensors than its weights in memory: {_listed(other)}" if other else ""


def _main_dtype(tensors: Sequence[Tensor]) -> str:
    """Return the type that most values have; empty without tensors."""
    values: Counter[str] = Counter()
    for tensor in tensors:
        values[tensor.dtype] += tensor.numel
    return values.most_common(1)[0][0] if values else ""


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(sorted(names)[:SHOWN]) + more
