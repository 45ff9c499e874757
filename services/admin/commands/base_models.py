"""What a base model is and can do, in lines for people."""

from collections.abc import Iterator
from typing import Any

from schemas.capabilities import BaseCapabilities
from schemas.model import NO_TEMPLATE_SHA256, BaseModelRegistered
from schemas.specification import AVAILABLE_METHODS

BYTES_PER_VALUE = 2
"""Of a number that is 16 bits wide."""
UNKNOWN = "what it can do was not found when it was registered; register it again"


def described(base: BaseModelRegistered) -> str:
    lines = [f"{base.name}: {base.num_parameters:,} parameters, sha {base.base_sha}"]
    lines += [f"  {name:<10} {text}" for name, text in _facts(base)]
    return "\n".join(lines)


def from_model(model: dict[str, Any]) -> BaseModelRegistered:
    """As `GET /v1/models/{name}` shows it."""
    return BaseModelRegistered.model_validate({"name": model["id"], **model["retune"]})


def _facts(base: BaseModelRegistered) -> Iterator[tuple[str, str]]:
    yield "source", base.source
    yield "context", f"{base.context_tokens:,} tokens"
    yield "template", _template(base)
    if (capabilities := base.capabilities) is None:
        yield "trained by", UNKNOWN
        return
    yield "family", _family(capabilities)
    yield from _methods(capabilities)
    yield "lora", _lora(capabilities)
    yield from _rows(capabilities)
    yield (
        "serving",
        f"{capabilities.cache_values_per_token * BYTES_PER_VALUE:,} bytes of cache a token in 16 bits",
    )


def _template(base: BaseModelRegistered) -> str:
    if base.template_sha256 == NO_TEMPLATE_SHA256:
        return "none: it completes prompts, and is trained on rows of prompt and completion alone"
    if base.training_template_sha256 is None:
        return f"its own, sha {base.template_sha256[:12]}"
    return f"its own, sha {base.template_sha256[:12]}; in training {base.training_template_sha256[:12]}"


def _family(capabilities: BaseCapabilities) -> str:
    experts = f", {capabilities.num_experts} experts" if capabilities.num_experts else ""
    layers = f"{capabilities.num_layers} layers of {capabilities.hidden_size}{experts}"
    size = f"{layers}, vocabulary {capabilities.vocab_size:,}"
    return f"{capabilities.family} ({size}; {capabilities.weights_dtype}, {capabilities.attention} attention)"


def _methods(capabilities: BaseCapabilities) -> Iterator[tuple[str, str]]:
    yield (
        "trained by",
        ", ".join(sorted(AVAILABLE_METHODS - capabilities.refused_methods.keys())) or "no method",
    )
    for method, reason in sorted(capabilities.refused_methods.items()):
        yield "", f"not by {method}: {reason}"


def _lora(capabilities: BaseCapabilities) -> str:
    names = ", ".join(capabilities.lora_targets) or "no layers"
    return f"{capabilities.lora_values_per_rank:,} values for each unit of rank, on {names}"


def _rows(capabilities: BaseCapabilities) -> Iterator[tuple[str, str]]:
    kinds = (kind for kind, reason in capabilities.rows.items() if not reason)
    yield "rows", ", ".join(["prompt and completion", *kinds])
    for kind, reason in capabilities.rows.items():
        if reason:
            yield "", f"not {kind}: {reason}"
