"""A tiny random model of each family that people fine-tune, with tokenizer and chat template: real files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.tiny_model import CHAT, Chat, save_tokenizer

VOCAB_SIZE = 512
CONTEXT_TOKENS = 512
TEXT = "\n".join(f"def times_{number}(x): return x * {number}  # by {number}" for number in range(300))
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}

_GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 128, "tie_word_embeddings": True}


@dataclass(frozen=True)
class Family:
    model_type: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the configuration, beside those that all families share; None leaves one of those out."""


FAMILIES: dict[str, Family] = {
    "Llama": Family("llama"),
    "Mistral": Family("mistral", {"sliding_window": 128}),
    "Qwen 2": Family("qwen2", {"tie_word_embeddings": True}),
    "Qwen 2.5": Family("qwen2"),
    "Qwen 3": Family("qwen3", {"head_dim": 32}),
    "Qwen 3 MoE": Family("qwen3_moe", {"head_dim": 32, **_EXPERTS}),
    "Mixtral": Family("mixtral", {"num_local_experts": 4}),
    "Gemma 2": Family("gemma2", _GEMMA),
    "Gemma 3": Family("gemma3_text", _GEMMA),
    "Phi-3": Family("phi3"),
    "OLMo 2": Family("olmo2"),
    "Granite": Family("granite", {"logits_scaling": 4.0, "embedding_multiplier": 2.0}),
    "GPT-2": Family("gpt2", {"num_key_value_heads": None}),
    "gpt-oss": Family("gpt_oss", {"head_dim": 32, "num_local_experts": 4, "sliding_window": 128}),
}


def build_family(directory: Path, name: str, *, text: str = TEXT, seed: int = 0, chat: Chat = CHAT) -> Path:
    """Write a base model of the family as a hub directory has it."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    family = FAMILIES[name]
    save_tokenizer(directory, text=text, vocab_size=VOCAB_SIZE, context_tokens=CONTEXT_TOKENS, chat=chat)
    shared = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT_TOKENS,
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    options = {name: value for name, value in (shared | family.options).items() if value is not None}
    config = CONFIG_MAPPING[family.model_type](**options)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(config, attn_implementation="eager").save_pretrained(directory)
    return directory
