"""Which kinds of training rows a base model's tokenizer and chat template take, and who marks what is learnt."""

from pathlib import Path
from typing import Any

from schemas.layout import TRAINING_TEMPLATE
from shared.chat.loading import BadTokenizer, end_tokens, load_tokenizer
from shared.chat.probes import KINDS, problems
from shared.chat.rendering import is_marked


def rows_and_marks(directory: Path) -> dict[str, Any]:
    """Return the fields of an Inspection that are about rows and marked answers."""
    try:
        tokenizer = load_tokenizer(directory)
    except BadTokenizer as error:
        return {"rows": dict.fromkeys(KINDS, str(error))}
    return {"rows": _rows(directory, tokenizer), "marks_answers": _marks_answers(tokenizer)}


def _rows(directory: Path, tokenizer: Any) -> dict[str, str]:
    """Return why no model could learn from each kind of conversation with this template; empty where it could."""
    path = directory / TRAINING_TEMPLATE
    template = path.read_text() if path.is_file() else None
    refused = problems(tokenizer, end_tokens(directory, tokenizer), template)
    return {kind: f"{refused[kind].rule}: {refused[kind].found}" if kind in refused else "" for kind in KINDS}


def _marks_answers(tokenizer: Any) -> bool | None:
    return is_marked(str(tokenizer.get_chat_template())) if tokenizer.chat_template else None
