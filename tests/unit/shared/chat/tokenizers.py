"""One tiny tokenizer for each kind that models have, and the templates that released models have."""

import importlib.util
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from shared.chat.conversation import BadMessage, Conversation
from shared.chat.encoding import EndTokens, Marked
from shared.chat.tokenizer import ChatTokenizer
from tests.tiny_model import CHAT_TEMPLATE

TEXT = (
    "What is a heap? A tree kept in an array. hello world, the weather in Paris is fine today.\n"
    'def f(x):\n    return {"city": x}  # <b>bold</b> 1 2 3\n'
) * 3
SPECIAL = ("<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>")
MARK = re.compile(
    r"<\|[A-Za-z_]+\|>|<[a-z_]+\|>|<\|[a-z_]+>|<｜[^｜]+｜>|<(?:start|end)_of_turn>|<end_of_utterance>"
)


def byte_level(special: Sequence[str] = SPECIAL, **flags: bool) -> Any:
    """As Llama 3 and Qwen have it. flags: of the special tokens, for example rstrip as Phi has it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    return _trained(tokenizer, trainer, special, **flags)


def metaspace() -> Any:
    """As Mistral has it: a space in front of the first word alone, bytes for what has no token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=460, initial_alphabet=_bytes(), show_progress=False)
    return _trained(tokenizer, trainer, SPECIAL)


def legacy_llama() -> Any:
    """As Llama 2 has it: a space in front of each piece between special tokens, by its normaliser."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers

    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=460, initial_alphabet=_bytes(), show_progress=False)
    return _trained(tokenizer, trainer, SPECIAL)


def unigram() -> Any:
    """As T5 and XLM-R have it: its normaliser makes one letter of another, its pieces hold the special tokens."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=list(SPECIAL), unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return _fast(tokenizer)


def word_pieces() -> Any:
    """As BERT has it: lower case, and a token for what is unknown."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    return _fast(tokenizer)


def stripping() -> Any:
    """As Phi 3 has it: the white space behind a special token is part of it."""
    return byte_level(rstrip=True, lstrip=True)


def normalised_special() -> Any:
    """As older conversions of Llama have it: special tokens are looked for in the normalised text."""
    return byte_level(normalized=True)


KINDS = {
    "byte_level": byte_level,
    "metaspace": metaspace,
    "legacy_llama": legacy_llama,
    "unigram": unigram,
    "word_pieces": word_pieces,
    "stripping": stripping,
    "normalised_special": normalised_special,
}


@cache
def tokenizer_of(kind: str) -> Any:
    return KINDS[kind]()


def template_names() -> list[str]:
    """Training templates of released models that TRL carries, by file name."""
    return sorted(path.name for path in _templates().glob("*_training.jinja"))


def released_names() -> list[str]:
    """Templates as models are released with them, by file name without its suffix."""
    names = {path.stem for path in _templates().glob("*.jinja")}
    return sorted(name for name in names if not name.endswith("_training"))


def template(name: str) -> str:
    return (_templates() / name).read_text()


def llama_3_1() -> str:
    """Llama 3.1's released template with what the assistant says marked, which it comes without."""
    text = template("llama3_1.jinja")
    header = "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' -}}"
    answer = "{{- message['content'] | trim + '<|eot_id|>' }}"
    plain = (
        "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
        "+ message['content'] | trim + '<|eot_id|>' }}"
    )
    marked = f"{{% if message.role == 'assistant' %}}{{% generation %}}{answer}{{% endgeneration %}}"
    call = text[text.index('{{- \'{"name": "\'') : text.index('{{- "}" }}')] + '{{- "}" }}'
    end = '{%- else %}\n            {{- "<|eot_id|>" }}'
    for old, new in (
        (plain, f"{header}{marked}{{% else %}}{answer}{{% endif %}}"),
        (call, f"{{% generation %}}{call}{{% endgeneration %}}"),
        (end, '{%- else %}\n{% generation %}{{- "<|eot_id|>" }}{% endgeneration %}'),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@cache
def with_template(text: str) -> Any:
    """A byte-level tokenizer with the special tokens that a template writes."""
    written = [mark for mark in sorted(set(MARK.findall(text))) if mark not in SPECIAL]
    tokenizer = byte_level((*SPECIAL, *written))
    tokenizer.chat_template = text
    return tokenizer


def trained(tokenizer: Any, conversation: Conversation, ends: frozenset[int]) -> Marked:
    """A row as ingest makes tokens of it. Raises BadMessage where the model could not learn to answer so."""
    chat = ChatTokenizer(tokenizer)
    rendering = chat.renderer.with_boundary(conversation, chat.renderer.render(conversation))
    (marked,) = chat.encoder.conversations([rendering])
    if isinstance(marked, BadMessage):
        raise marked
    if problem := EndTokens(tokenizer, ends).problem(marked, conversation.messages[-1].field):
        raise problem
    return marked


def _templates() -> Path:
    # Found without an import: TRL imports torch.
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "chat_templates"


def _bytes() -> list[str]:
    return [chr(code) for code in range(32, 127)]


def _trained(tokenizer: Any, trainer: Any, special: Sequence[str], **flags: bool) -> Any:
    from tokenizers import AddedToken, Tokenizer

    tokenizer.train_from_iterator([TEXT], trainer)
    content = json.loads(tokenizer.to_str())
    if content["model"]["byte_fallback"]:
        vocabulary = content["model"]["vocab"]
        for piece in ("<unk>", *(f"<0x{code:02X}>" for code in range(256))):
            vocabulary[piece] = len(vocabulary)
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, **({"normalized": False} | flags)) for text in special]
    )
    return _fast(tokenizer)


def _fast(tokenizer: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
