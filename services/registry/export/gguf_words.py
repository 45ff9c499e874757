"""The tokenizer of a model as GGUF has it: tokens, merges, special tokens, how text is split, the chat template."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
from gguf import TokenType

from services.registry.export.merging import NotExportable

TOKENIZER = "tokenizer.json"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    "": "gpt-2",
    rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}": "llama-bpe",
    rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}": "qwen2",
}
"""llama.cpp's name for each pattern by which a text is split before its bytes are merged; empty: GPT-2's own."""


def add_tokenizer(writer: Any, directory: Path, vocab_size: int) -> None:
    """Add the tokenizer of the folder. Raises NotExportable where llama.cpp would split texts otherwise."""
    path = directory / TOKENIZER
    if not path.is_file():
        raise NotExportable(f"it has no {TOKENIZER}, which the tokens of a GGUF file are taken from")
    tokenizer = json.loads(path.read_text())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_split_of(tokenizer))
    tokens, types = _tokens(tokenizer, vocab_size)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    special = gguf.SpecialVocab(directory, load_merges=True, n_vocab=vocab_size)
    special.add_to_gguf(writer, quiet=True)


def _split_of(tokenizer: Mapping[str, Any]) -> str:
    if tokenizer["model"].get("type") != "BPE":
        raise NotExportable(f"tokenizer of type {tokenizer['model'].get('type')}: expected BPE for GGUF")
    outer = tokenizer.get("pre_tokenizer") or {}
    steps = outer.get("pretokenizers", [outer])
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        raise NotExportable("its tokenizer does not merge bytes, as GPT-2's, Llama 3's and Qwen's do")
    pattern = "|".join(str(step["pattern"].get("Regex")) for step in steps[:-1] if step["type"] == "Split")
    if pattern not in SPLITS or len(steps) > 2:
        raise NotExportable("its tokenizer splits texts in a way that llama.cpp has no name for here")
    return SPLITS[pattern]


def _tokens(tokenizer: Mapping[str, Any], vocab_size: int) -> tuple[list[str], list[TokenType]]:
    """Return the token of each id and its type; ids that no token has are filled up."""
    added = {each["id"]: each for each in tokenizer.get("added_tokens", ())}
    known = {token_id: token for token, token_id in tokenizer["model"]["vocab"].items()}
    known |= {token_id: each["content"] for token_id, each in added.items()}
    if beyond := [token_id for token_id in known if token_id >= vocab_size]:
        raise NotExportable(f"token id {max(beyond)} is beyond the model's {vocab_size} embeddings")

    def type_of(token_id: int) -> TokenType:
        if token_id not in known:
            return TokenType.UNUSED
        if token_id not in added:
            return TokenType.NORMAL
        return TokenType.CONTROL if added[token_id]["special"] else TokenType.USER_DEFINED

    ids = range(vocab_size)
    return [known.get(each, f"[PAD{each}]") for each in ids], [type_of(each) for each in ids]
