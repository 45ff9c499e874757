"""The demo's base model: a tiny Llama that has read the standard library, and no more.

It is shipped in `base/`, so that it is the same everywhere. `python -m deploy.demo.base_model [FOLDER]` makes it.
"""

import hashlib
import json
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.demo.conversations import generic_conversations
from deploy.demo.library import (
    Source,
    Split,
    distinct_docstrings,
    docstrings_of,
    library_root,
    read_sources,
    seeded,
    training_text,
)
from deploy.demo.pretraining import (
    PretrainingSettings,
    Rows,
    Step,
    held_out_loss,
    pretrain,
    rows_of,
)
from deploy.demo.tokenizer import END, PAD, train_tokenizer

SHIPPED = Path(__file__).parent / "base"
FIGURES = "figures.json"
DIGESTS = "sha256.json"
"""Beside the model's folder: the sha256 of each of its files."""
PIECE_CHARS = (200, 1_500)
"""Shortest and longest piece of source text, without the line that it is cut at."""
NUM_CODE_ROWS = 800
NUM_WISHES = 2_500
CHAT_SHARE = 0.25
"""Tokens of chat rows among those that are trained on."""
DOCSTRING_SHARE = 0.25
DOCSTRING_WORDS = (8, 40)
"""Fewest and most words of a docstring that is read alone."""
SECONDS_BETWEEN_LINES = 5.0


class WrongDigest(ValueError):
    """A file of the base model is not the one that was made."""


@dataclass(frozen=True)
class ModelSettings:
    vocab_size: int = 4096
    hidden_size: int = 192
    num_layers: int = 4
    num_heads: int = 6
    """Heads are 32 wide, which serving and quantisation accept."""
    num_key_value_heads: int = 2
    intermediate_size: int = 512
    context_tokens: int = 1024
    pretraining: PretrainingSettings = field(default_factory=PretrainingSettings)


@dataclass(frozen=True)
class BaseModel:
    directory: Path
    """Folder of the model as a hub has it: configuration, safetensors, tokenizer with chat template."""
    num_parameters: int
    held_out_loss: float
    """Nats per token of the sources that no training sees."""
    train_tokens: int
    seconds: float
    """What making it took; it may be long ago."""


def load(folder: Path = SHIPPED) -> BaseModel:
    """A model that `make` wrote. Raises: WrongDigest."""
    for name, expected in json.loads((folder / DIGESTS).read_text()).items():
        digest = _digest(folder / "model" / name)
        if digest != expected:
            raise WrongDigest(f"{folder / 'model' / name} has sha256 {digest}, expected {expected}")
    figures = json.loads((folder / FIGURES).read_text())
    return BaseModel(directory=folder / "model", **figures)


def make(
    folder: Path,
    settings: ModelSettings | None = None,
    *,
    sources: Sequence[Source] | None = None,
    say: Callable[[str], None] = print,
) -> BaseModel:
    """Train the model and write it to `folder`. Equal arguments give equal bytes on the same machine."""
    import torch

    settings = settings or ModelSettings()
    sources = read_sources(library_root()) if sources is None else sources
    started = time.monotonic()
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.pretraining.threads)
    say(f"reading {len(sources)} source files of Python {platform.python_version()}")
    seen = [source for source in sources if not source.is_held_out]
    texts = [training_text(source) for source in seen]
    tokenizer = train_tokenizer(texts, vocab_size=settings.vocab_size, context_tokens=settings.context_tokens)
    documents = _documents(tokenizer, seen, texts, settings.pretraining)
    rows = rows_of(documents, row_tokens=settings.pretraining.row_tokens)
    model = _new_model(settings, tokenizer)
    pretrain(model, rows, settings.pretraining, _progress(say))
    # Kept in half the bytes: rounding comes first, so that the loss is that of the files.
    model = model.to(torch.bfloat16).float()
    loss = held_out_loss(model, _held_out_rows(tokenizer, sources, settings.pretraining.row_tokens))
    torch.set_num_threads(threads)
    model.to(torch.bfloat16).save_pretrained(folder / "model", safe_serialization=True)
    tokenizer.save_pretrained(folder / "model")
    figures = {
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "held_out_loss": loss,
        "train_tokens": rows.tokens_NT.numel(),
        "seconds": time.monotonic() - started,
    }
    _write(folder / FIGURES, figures)
    _write(folder / DIGESTS, {path.name: _digest(path) for path in sorted((folder / "model").iterdir())})
    return load(folder)


def _held_out_rows(tokenizer: Any, sources: Sequence[Source], row_tokens: int) -> Rows:
    texts = [_tokens(tokenizer, source.text + END) for source in sources if source.is_held_out]
    pieces = [text[start : start + row_tokens] for text in texts for start in range(0, len(text), row_tokens)]
    return rows_of(pieces, row_tokens=row_tokens)


def _new_model(settings: ModelSettings, tokenizer: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    end, pad = tokenizer.convert_tokens_to_ids([END, PAD])
    config = LlamaConfig(
        vocab_size=settings.vocab_size,
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        num_key_value_heads=settings.num_key_value_heads,
        intermediate_size=settings.intermediate_size,
        max_position_embeddings=settings.context_tokens,
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=pad,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.pretraining.seed)
        return LlamaForCausalLM(config)


def _documents(
    tokenizer: Any, seen: Sequence[Source], texts: Sequence[str], settings: PretrainingSettings
) -> list[list[int]]:
    """Source text, docstrings and chat rows in a random order, as many tokens as are to be trained on."""
    chance = seeded(settings.seed)
    paths = [source.path for source in seen]
    pieces = [piece for path, text in zip(paths, texts, strict=True) for piece in _pieces(path, text, chance)]
    chance.shuffle(pieces)
    chats = generic_conversations(
        distinct_docstrings(seen),
        texts,
        num_wishes=NUM_WISHES,
        num_code_rows=NUM_CODE_ROWS,
        seed=settings.seed,
    )
    rendered = (tokenizer.apply_chat_template(row, tokenize=False) for row in chats)
    chosen = [
        *_first(CHAT_SHARE * settings.train_tokens, (_tokens(tokenizer, chat) for chat in rendered)),
        *_first(
            DOCSTRING_SHARE * settings.train_tokens,
            (_tokens(tokenizer, text + END) for text in _documentation(seen, chance)),
        ),
    ]
    missing = settings.train_tokens - sum(map(len, chosen))
    chosen += _first(missing, (_tokens(tokenizer, piece + END) for piece in pieces))
    chance.shuffle(chosen)
    return chosen


def _documentation(seen: Sequence[Source], chance: random.Random) -> Iterator[str]:
    """Docstrings that training may see, each with the file it is from; all of them, then all again."""
    docstrings = [
        (source.path, doc.text.split())
        for source in seen
        for doc in docstrings_of(source)
        if doc.split is Split.TRAIN
    ]
    while docstrings:
        chance.shuffle(docstrings)
        for path, words in docstrings:
            yield _cited(" ".join(words[: chance.randint(*DOCSTRING_WORDS)]) + "\n", path)


def _tokens(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _pieces(path: str, text: str, chance: random.Random) -> Iterator[str]:
    """The text cut at line ends into pieces of many sizes; each ends by naming its file."""
    piece, target_chars = "", chance.randint(*PIECE_CHARS)
    for line in text.splitlines(keepends=True):
        piece += line
        if len(piece) >= target_chars:
            yield _cited(piece, path)
            piece, target_chars = "", chance.randint(*PIECE_CHARS)
    if piece:
        yield _cited(piece, path)


def _cited(text: str, path: str) -> str:
    return f"{text}({path})"


def _first(num_tokens: float, documents: Iterator[list[int]]) -> list[list[int]]:
    """Documents until they hold so many tokens."""
    chosen: list[list[int]] = []
    for document in documents:
        if num_tokens <= 0:
            break
        chosen.append(document)
        num_tokens -= len(document)
    return chosen


def _progress(say: Callable[[str], None]) -> Callable[[Step], None]:
    """A line from time to time, and one for the last step."""
    last_reported = time.monotonic()

    def report(step: Step) -> None:
        nonlocal last_reported
        now = time.monotonic()
        if now - last_reported < SECONDS_BETWEEN_LINES and step.number < step.num_steps:
            return
        last_reported = now
        say(
            f"pre-training: step {step.number}/{step.num_steps}, loss {step.loss:.2f}, "
            f"{step.tokens_per_second:,.0f} tokens/s, {step.seconds_left:.0f} s left"
        )

    return report


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED
    print(make(target, say=lambda line: print(line, file=sys.stderr, flush=True)).directory)
