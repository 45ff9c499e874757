"""A base model built from its configuration and the headers of its files, on the meta device: no weight is read."""

from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from services.registry.inspection.heads import head_makes
from services.registry.inspection.rows import rows_and_marks
from services.registry.model import Inspection
from shared.causal_models import (
    INNER_SIZES,
    as_in_files,
    attention_of,
    converts_names,
    first_size,
    loss_form,
    model_class_of,
    plain_linears,
)

SENTENCE_CHARACTERS = 300
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


def inspect(directory: Path) -> Inspection:
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        inspection = _of_config(config)
    except Exception as error:  # noqa: BLE001 whatever a family's own code raises is what people have to read
        return Inspection(problem=_sentence("config.json", error))
    inspection = inspection.model_copy(update=rows_and_marks(directory))
    # Quantised weights are unpacked while they are loaded, which asks for their library and its device.
    if inspection.problem or inspection.quantization:
        return inspection
    try:
        return inspection.model_copy(update=_of_network(directory, config, inspection.attention))
    except Exception as error:  # noqa: BLE001
        return inspection.model_copy(update={"problem": _sentence("loading it", error)})


def _of_config(config: Any) -> Inspection:
    known = {"family": config.model_type, "architectures": tuple(config.architectures or ())}
    try:
        model_class = model_class_of(config)
    except KeyError:
        return Inspection(**known, problem="transformers has no causal language model of this family")
    text = config.get_text_config()
    return Inspection(
        **known,
        architecture=model_class.__name__,
        attention=attention_of(config),
        takes_attention=bool(model_class._supports_attention_backend),  # noqa: SLF001 as in attention_of
        is_of_text=not any(name.endswith("_config") for name in config.sub_configs),
        quantization=_quantization(config),
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        intermediate_size=first_size(text, INNER_SIZES),
        num_experts=first_size(text, EXPERT_COUNTS),
        vocab_size=text.vocab_size,
        tie_word_embeddings=bool(config.tie_word_embeddings),
        cache_values_per_token=_cache_values_per_token(text),
    )


def _of_network(directory: Path, config: Any, attention: str) -> dict[str, Any]:
    model, loading = AutoModelForCausalLM.from_pretrained(
        directory,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        device_map="meta",
        attn_implementation=attention,
        output_loading_info=True,
    )
    written = as_in_files(model, dict(model.named_parameters()), _names_in(directory))
    linears = plain_linears(model)
    form = loss_form(config)
    return {
        "linears": {name: (linear.out_features, linear.in_features) for name, linear in linears.items()},
        "written": {name: tuple(tensor.shape) for name, tensor in written.items()},
        "missing": tuple(sorted(loading["missing_keys"])),
        "converts_names": converts_names(model),
        "loss": form if head_makes(model, form) else None,
    }


def _names_in(directory: Path) -> frozenset[str]:
    names: set[str] = set()
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            names.update(file.keys())
    return frozenset(names)


def _quantization(config: Any) -> str:
    """Return how the weights are quantised, or an empty text."""
    settings = getattr(config, "quantization_config", None)
    if not settings:
        return ""
    return str(
        settings.get("quant_method", "unnamed") if isinstance(settings, dict) else settings.quant_method
    )


def _cache_values_per_token(config: Any) -> int:
    """Return how many values of keys and values a token adds, over all layers that attend to what came before.

    Windows and shared layers are not taken off.
    """
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    num_layers = sum(kind in ("full_attention", "sliding_attention", "attention") for kind in kinds)
    if latent := getattr(config, "kv_lora_rank", None):
        return num_layers * int(latent + config.qk_rope_head_dim)
    num_heads = getattr(config, "num_attention_heads", 0)
    size = getattr(config, "head_dim", None) or config.hidden_size // max(1, num_heads)
    return num_layers * 2 * int(getattr(config, "num_key_value_heads", None) or num_heads) * int(size)


def _sentence(where: str, error: Exception) -> str:
    return f"{where}: {type(error).__name__}: {' '.join(str(error).split())[:SENTENCE_CHARACTERS]}"
