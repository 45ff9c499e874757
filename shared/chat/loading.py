"""Loading of tokenizers from models' directories, without their code and without torch."""

import json
import logging
import sys
from pathlib import Path
from typing import Any


class BadTokenizer(ValueError):
    """The tokenizer cannot render and encode conversations. `code` is a stable word for machines."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def load_tokenizer(directory: Path) -> Any:
    """Load the tokenizer of a local directory; no code of the directory runs and torch is never imported.

    It is for processes that do no other work, since `import torch` fails afterwards. Raises BadTokenizer.
    """
    # None makes `import torch` fail, so that transformers takes its tokenizers alone.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    from transformers import AutoTokenizer

    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise BadTokenizer(
            "tokenizer.unreadable", f"the base model's tokenizer cannot be read: {error}"
        ) from error
    if not tokenizer.is_fast:
        raise BadTokenizer(
            "tokenizer.not_fast", "the base model has no tokenizer.json, which masks are made with"
        )
    return tokenizer


def end_tokens(directory: Path, tokenizer: Any) -> frozenset[int]:
    """Return ids of the tokens at which a served model stops, the tokenizer's own end token among them.

    The others come from generation_config.json or, if there is none, from config.json.
    """
    names = ("generation_config.json", "config.json")
    config = next((directory / name for name in names if (directory / name).is_file()), None)
    configured = json.loads(config.read_bytes()).get("eos_token_id") if config else None
    listed = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in (*listed, tokenizer.eos_token_id) if isinstance(token, int))
