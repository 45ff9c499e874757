"""Texts that every export is compared on: prose of several languages, code, numbers, a conversation."""

import json
from pathlib import Path
from typing import Any

MAX_TOKENS = 192
"""Longest sequence; a text that is longer is cut."""

TEXTS: tuple[str, ...] = tuple(json.loads(Path(__file__).with_name("texts.json").read_text()))
CONVERSATION = (
    {"role": "user", "content": "Which of these is a prime number: 21, 29 or 35? Explain in one sentence."},
    {"role": "assistant", "content": "29 is prime, because no whole number but 1 and 29 divides it."},
)


def token_ids_of(tokenizer: Any) -> list[list[int]]:
    """Return the token ids of each text, and of a conversation where the model has a chat template."""
    texts = [tokenizer(text)["input_ids"] for text in TEXTS]
    if tokenizer.chat_template:
        texts.append(tokenizer(conversation_of(tokenizer), add_special_tokens=False)["input_ids"])
    return [ids[:MAX_TOKENS] for ids in texts if ids]


def conversation_of(tokenizer: Any) -> str:
    return str(tokenizer.apply_chat_template(list(CONVERSATION), tokenize=False))


def load_tokenizer_of(directory: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
