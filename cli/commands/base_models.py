"""What a base model is and can do, in lines for people."""

from collections.abc import Iterator, Mapping
from typing import Any

from cli.commands.times import shown_duration
from schemas.capabilities import BaseCapabilities
from schemas.compatibility import methods_for
from schemas.model import NO_TEMPLATE_SHA256, BaseModelRegistered
from schemas.numbers import plural

BYTES_PER_VALUE = 2
"""Bytes of a number that is 16 bits wide."""
ALIKE = {
    "recipe": "with the same base model, method and number of devices",
    "base_model": "with the same base model",
    "pool": "with other base models, by their size",
}
UNKNOWN = "what it can do was not found when it was registered; register it again"


def described(base: BaseModelRegistered, memory: Mapping[str, Any] | None = None) -> str:
    """memory: what each method needs of a device, as the gateway estimates it; None where it does not."""
    lines = [f"{base.name}: {base.num_parameters:,} parameters, sha {base.base_sha}"]
    facts = (*_facts(base), *_memory(memory or {}))
    lines += [f"  {name:<10} {text}" for name, text in facts]
    return "\n".join(lines)


def described_model(name: str, facts: dict[str, Any]) -> str:
    """facts: as `GET /v1/models/{name}` and the answer to a submit have them."""
    base = BaseModelRegistered.model_validate({"name": name, **facts})
    return described(base, facts.get("memory"))


def described_estimate(estimate: Mapping[str, Any]) -> str:
    """Describe in one line what memory a job needs."""
    how = "its activations computed again" if estimate["gradient_checkpointing"] else "all activations kept"
    offload = ", moments in the host's memory" if estimate["offload_optimizer"] else ""
    pool = f" of pool {estimate['pool']}" if estimate["pool"] else ""
    return (
        f"memory: about {_gib(estimate['total_bytes'])} of each GPU{pool} with {how}{offload}, "
        f"{plural(estimate['micro_batch_size'], 'window')} of {estimate['max_seq_length']:,} tokens at a time"
    )


def described_time(estimate: Mapping[str, Any]) -> str:
    """Describe in one line how long a job will hold its devices, and what that costs."""
    seconds, cost = estimate["seconds"], estimate["cost_usd"]
    error = estimate["error"]
    off = "" if error is None else f"; estimates there were off by {error:.0%} in the median"
    return (
        f"time and cost in pool {estimate['pool']}: about {shown_duration(seconds['expected'])} "
        f"({shown_duration(seconds['low'])} to {shown_duration(seconds['high'])}), {cost['expected']} US dollars "
        f"({cost['low']} to {cost['high']}), by {plural(estimate['attempts'], 'attempt')} "
        f"{ALIKE[estimate['alike']]}{off}"
    )


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
    own = f"its own, sha {base.template_sha256[:12]}"
    return "; ".join(filter(None, (own, _marks(base))))


def _marks(base: BaseModelRegistered) -> str:
    """Who says which part of a row is an answer; empty where that is not known."""
    if base.training_template_sha256 is not None:
        return f"answers by the marks of the training template, sha {base.training_template_sha256[:12]}"
    marks = base.capabilities.marks_answers if base.capabilities else None
    if marks is None:
        return ""
    return "answers by its own marks" if marks else "answers derived from what it writes"


def _family(capabilities: BaseCapabilities) -> str:
    experts = f", {capabilities.num_experts} experts" if capabilities.num_experts else ""
    layers = f"{capabilities.num_layers} layers of {capabilities.hidden_size}{experts}"
    size = f"{layers}, vocabulary {capabilities.vocab_size:,}"
    return f"{capabilities.family} ({size}; {capabilities.weights_dtype}, {capabilities.attention} attention)"


def _methods(capabilities: BaseCapabilities) -> Iterator[tuple[str, str]]:
    yield "trained by", ", ".join(methods_for(capabilities)) or "no method"
    for method, reason in sorted(capabilities.refused_methods.items()):
        yield "", f"not by {method}: {reason}"


def _lora(capabilities: BaseCapabilities) -> str:
    names = ", ".join(capabilities.lora_targets) or "no layers"
    return f"{capabilities.lora_values_per_rank:,} values for each unit of rank, on {names}"


def _rows(capabilities: BaseCapabilities) -> Iterator[tuple[str, str]]:
    # Sorted, for the gateway's database keeps no order of them.
    kinds = sorted(capabilities.rows.items())
    yield "rows", ", ".join(["prompt and completion", *(kind for kind, reason in kinds if not reason)])
    for kind, reason in kinds:
        if reason:
            yield "", f"not {kind}: {reason}"


def _memory(memory: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name = "memory"
    for method, needs in sorted(memory.items()):
        again = f"{_gib(needs['recomputed_bytes'])} with activations computed again"
        windows = f"windows of {needs['max_seq_length']:,} tokens"
        yield name, f"{method}: about {_gib(needs['kept_bytes'])} of a GPU, {again}; {windows}"
        name = ""


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
