"""Which causal language models vLLM serves, by the class that their config.json names.

The sets have only classes that transformers builds too: what it cannot build cannot be trained. A class that is in
none of these sets is served through vLLM's backend for models of transformers, if its attention can be replaced.
tests/unit/schemas/test_serving.py compares the sets with the source of the vLLM that is installed.
"""

WITH_ADAPTERS = frozenset({
    "AXK1ForCausalLM", "AfmoeForCausalLM", "ApertusForCausalLM", "Cohere2ForCausalLM", "CohereForCausalLM",
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Ernie4_5ForCausalLM", "Ernie4_5_MoeForCausalLM",
    "Exaone4ForCausalLM", "ExaoneMoeForCausalLM", "FalconH1ForCausalLM", "Gemma2ForCausalLM",
    "Gemma3ForCausalLM", "Gemma4ForCausalLM", "GemmaForCausalLM", "Glm4ForCausalLM", "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM", "GlmMoeDsaForCausalLM", "GptOssForCausalLM", "GraniteForCausalLM",
    "GraniteMoeForCausalLM", "GraniteMoeHybridForCausalLM", "GraniteMoeSWAForCausalLM",
    "GraniteMoeSharedForCausalLM", "GraniteSWAForCausalLM", "HYV3ForCausalLM", "HyperCLOVAXForCausalLM",
    "JambaForCausalLM", "LagunaForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Llama4ForCausalLM",
    "LlamaForCausalLM", "LongcatFlashForCausalLM", "MiniCPM3ForCausalLM", "MiniMaxM2ForCausalLM",
    "Ministral3ForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "NemotronForCausalLM",
    "NemotronHForCausalLM", "OPTForCausalLM", "OlmoHybridForCausalLM", "OlmoeForCausalLM",
    "Phi3ForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM",
})  # fmt: skip

WITHOUT_ADAPTERS = frozenset({
    "BloomForCausalLM", "Cohere2MoeForCausalLM", "DbrxForCausalLM", "DeepseekV32ForCausalLM",
    "DeepseekV4ForCausalLM", "FalconForCausalLM", "FalconMambaForCausalLM", "GPT2LMHeadModel",
    "GPTJForCausalLM", "Gemma3nForCausalLM", "HYV4ForCausalLM", "HrmTextForCausalLM", "InklingForCausalLM",
    "KimiLinearForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM", "MiMoV2FlashForCausalLM",
    "Qwen4ExpForCausalLM", "StableLmForCausalLM", "Zamba2ForCausalLM",
})  # fmt: skip

NOT_SERVED = frozenset({
    "BambaForCausalLM", "Dots1ForCausalLM", "FuyuForCausalLM", "MiniMaxForCausalLM", "MptForCausalLM",
    "PersimmonForCausalLM", "Phi4MultimodalForCausalLM",
})  # fmt: skip
"""Classes that earlier releases served, and that are refused by name since."""


def is_served(architecture: str, *, takes_attention: bool) -> bool:
    """Return whether vLLM serves the class. takes_attention: whether transformers can replace its attention."""
    return architecture in WITH_ADAPTERS | WITHOUT_ADAPTERS or (
        takes_attention and architecture not in NOT_SERVED
    )


def is_served_with_adapters(architecture: str, *, takes_attention: bool) -> bool:
    return architecture not in WITHOUT_ADAPTERS and is_served(architecture, takes_attention=takes_attention)
