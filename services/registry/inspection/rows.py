"""Which kinds of training rows a base model's tokenizer and chat template take."""

from pathlib import Path

from schemas.layout import TRAINING_TEMPLATE
from shared.chat.loading import BadTokenizer, end_tokens, load_tokenizer
from shared.chat.probes import KINDS, problems


def rows(directory: Path) -> dict[str, str]:
    """Kinds of conversations, each with why no model could learn from it with this template; empty where it could."""
    try:
        tokenizer = load_tokenizer(directory)
    except BadTokenizer as error:
        return dict.fromkeys(KINDS, str(error))
    path = directory / TRAINING_TEMPLATE
    template = path.read_text() if path.is_file() else None
    refused = problems(tokenizer, end_tokens(directory, tokenizer), template)
    return {kind: f"{refused[kind].rule}: {refused[kind].found}" if kind in refused else "" for kind in KINDS}
