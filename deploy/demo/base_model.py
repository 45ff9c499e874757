"""The demo's base model: a tiny Llama that has read the standard library, and no more.

`python -m deploy.demo.base_model` makes it, or finds it in the cache, and prints its folder.
"""

import hashlib
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
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

CODE = ("base_model.py", "conversations.py", "library.py", "pretraining.py", "tokenizer.py")
PIECE_CHARS = (200, 1_500)
"""Shortest and longest piece of source text, without the line that it is cut at."""
NUM_CODE_ROWS = 2_000
CHAT_SHARE = 0.2
"""Tokens of chat rows among those that are trained on."""
DOCSTRING_SHARE = 0.25
DOCSTRING_WORDS = (8, 40)
"""Fewest and most words of a docstring that is read by itself."""
SECONDS_BETWEEN_LINES = 5.0


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
    """As a hub has it: configuration, safetensors, tokenizer with chat template."""
    num_parameters: int
    held_out_loss: float
    """Nats per token of the sources that no training sees."""
    train_tokens: int
    seconds: float
    """What making it took; it may be long ago."""


def find_or_make(
    settings: ModelSettings | None = None,
    *,
    sources: Sequence[Source] | None = None,
    cache: Path | None = None,
    say: Callable[[str], None] = print,
) -> BaseModel:
    """The base model for these settings and this Python, from the cache if it was made before."""
    settings = settings or ModelSettings()
    folder = (cache or default_cache()) / f"base-model-{cache_key(settings)[:16]}"
    if not (folder / "figures.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-") as unfinished:
            _make(Path(unfinished), settings, sources or read_sources(library_root()), say)
            _move(Path(unfinished), folder)
    figures = json.loads((folder / "figures.json").read_text())
    return BaseModel(directory=folder / "model", **figures)


def default_cache() -> Path:
    return Path(os.environ.get("RETUNE_CACHE") or Path.home() / ".cache" / "retune") / "demo"


def cache_key(settings: ModelSettings) -> str:
    """Equal keys give equal models on one machine: the code, the library, the settings."""
    here = Path(__file__).parent
    identity = {
        "code": [hashlib.sha256((here / name).read_bytes()).hexdigest() for name in CODE],
        "python": [platform.python_implementation(), platform.python_version(), str(library_root())],
        "libraries": [version(name) for name in ("torch", "transformers", "tokenizers")],
        "settings": asdict(settings),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _make(
    folder: Path, settings: ModelSettings, sources: Sequence[Source], say: Callable[[str], None]
) -> None:
    import torch

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
    loss = held_out_loss(model, _held_out_rows(tokenizer, sources, settings.pretraining.row_tokens))
    torch.set_num_threads(threads)
    model.save_pretrained(folder / "model", safe_serialization=True)
    tokenizer.save_pretrained(folder / "model")
    figures = {
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "held_out_loss": loss,
        "train_tokens": rows.tokens_NT.numel(),
        "seconds": time.monotonic() - started,
    }
    (folder / "figures.json").write_text(json.dumps(figures))


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
        distinct_docstrings(seen), texts, num_code_rows=NUM_CODE_ROWS, seed=settings.seed
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
    found = [
        (source.path, doc.text.split())
        for source in seen
        for doc in docstrings_of(source)
        if doc.split is Split.TRAIN
    ]
    while found:
        chance.shuffle(found)
        for path, words in found:
            yield _cited(" ".join(words[: chance.randint(*DOCSTRING_WORDS)]) + "\n", path)


def _tokens(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _pieces(path: str, text: str, chance: random.Random) -> Iterator[str]:
    """The text cut at line ends into pieces of many sizes; each ends by naming its file."""
    piece, wanted = "", chance.randint(*PIECE_CHARS)
    for line in text.splitlines(keepends=True):
        piece += line
        if len(piece) >= wanted:
            yield _cited(piece, path)
            piece, wanted = "", chance.randint(*PIECE_CHARS)
    if piece:
        yield _cited(piece, path)


def _cited(text: str, path: str) -> str:
    return f"{text}({path})"


def _first(num_tokens: float, documents: Iterator[list[int]]) -> list[list[int]]:
    """Documents until they hold so many tokens."""
    found: list[list[int]] = []
    for document in documents:
        if num_tokens <= 0:
            break
        found.append(document)
        num_tokens -= len(document)
    return found


def _progress(say: Callable[[str], None]) -> Callable[[Step], None]:
    """A line from time to time, and one for the last step."""
    last_said = time.monotonic()

    def report(step: Step) -> None:
        nonlocal last_said
        now = time.monotonic()
        if now - last_said < SECONDS_BETWEEN_LINES and step.number < step.num_steps:
            return
        last_said = now
        say(
            f"pre-training: step {step.number}/{step.num_steps}, loss {step.loss:.2f}, "
            f"{step.tokens_per_second:,.0f} tokens/s, {step.seconds_left:.0f} s left"
        )

    return report


def _move(unfinished: Path, folder: Path) -> None:
    """Into place at once; a second maker's equal model stays where it was first."""
    try:
        Path(unfinished).rename(folder)
    except OSError:
        if not (folder / "figures.json").exists():
            raise


if __name__ == "__main__":
    made = find_or_make(say=lambda line: print(line, file=sys.stderr, flush=True))
    print(made.directory)
