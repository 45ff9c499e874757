"""A tiny Llama with tokenizer and chat template, built from text alone: real files, small numbers."""

import json
from dataclasses import dataclass
from pathlib import Path

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Chat:
    """How a model's conversations are written."""

    template: str = CHAT_TEMPLATE
    special_tokens: tuple[str, ...] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    """The first one pads, the third one ends a turn."""
    begin: str | None = None
    """The special token that begins every text."""


CHAT = Chat()


def build_tiny_model(
    directory: Path,
    *,
    text: str,
    vocab_size: int = 512,
    hidden_size: int = 64,
    num_layers: int = 2,
    context_tokens: int = 512,
    seed: int = 0,
    initializer_range: float = 0.02,
) -> Path:
    """Write a base model as a hub directory has it; equal arguments give equal bytes.

    `initializer_range` is the spread of the weights; an adapter learns faster on a wider untrained model, say 0.125.

    Heads are 32 wide and the inner size is a multiple of 128, which serving and quantisation ask for.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    save_tokenizer(directory, text=text, vocab_size=vocab_size, context_tokens=context_tokens)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=128 * max(1, round(hidden_size * 2.67 / 128)),
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 32,
        num_key_value_heads=max(1, hidden_size // 64),
        max_position_embeddings=context_tokens,
        initializer_range=initializer_range,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def save_tokenizer(
    directory: Path, *, text: str, vocab_size: int, context_tokens: int, chat: Chat = CHAT
) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(chat.special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=chat.begin,
        eos_token=chat.special_tokens[2],
        pad_token=chat.special_tokens[0],
        model_max_length=context_tokens,
    )
    fast.chat_template = chat.template
    fast.save_pretrained(directory)


def template_text(directory: Path) -> str:
    """The chat template as it was saved."""
    jinja = directory / "chat_template.jinja"
    if jinja.exists():
        return jinja.read_text()
    return str(json.loads((directory / "tokenizer_config.json").read_text())["chat_template"])
