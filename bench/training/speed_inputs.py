"""What both sides of `bench.training.speed` train: random models of two shapes, and rows of real text."""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from deploy.demo.library import library_root, read_sources
from tests.tiny_model import build_tiny_model

WINDOW_TOKENS = 512
VOCAB_SIZE = 32_000
TEXT_CHARACTERS = 6_000_000
NUM_HELD_OUT = 8
BASE = "base"
ROWS = "rows.json"


@dataclass(frozen=True)
class Shape:
    hidden_size: int
    num_layers: int
    num_rows: int


SHAPES = {
    # Most of its arithmetic is the product with the head.
    "head-heavy": Shape(256, 6, 192),
    # As SmolLM2-135M.
    "body-heavy": Shape(576, 30, 48),
}


@dataclass(frozen=True)
class Row:
    """Token ids. Supervised training takes the chosen answer alone."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]


def make(directory: Path, shape: Shape, *, seed: int) -> Path:
    """A base model, and rows whose lengths are spread as those of real ones: a lognormal, cut to a window."""
    from transformers import AutoTokenizer

    text = "".join(source.text for source in read_sources(library_root()))[:TEXT_CHARACTERS]
    build_tiny_model(
        directory / BASE,
        text=text,
        vocab_size=VOCAB_SIZE,
        hidden_size=shape.hidden_size,
        num_layers=shape.num_layers,
        context_tokens=2 * WINDOW_TOKENS,
    )
    tokenizer = AutoTokenizer.from_pretrained(directory / BASE)
    tokens: list[int] = tokenizer(text[: TEXT_CHARACTERS // 4])["input_ids"]
    draw = random.Random(seed)
    rows = [_row(draw, tokens) for _ in range(shape.num_rows + NUM_HELD_OUT)]
    (directory / ROWS).write_text(json.dumps([asdict(row) for row in rows]))
    return directory


def rows_in(directory: Path) -> tuple[Sequence[Row], Sequence[Row]]:
    """Those to train on, and those held out."""
    rows = [Row(**fields) for fields in json.loads((directory / ROWS).read_text())]
    return rows[:-NUM_HELD_OUT], rows[-NUM_HELD_OUT:]


def _row(draw: random.Random, tokens: Sequence[int]) -> Row:
    """Both answers and two prompts fit one window."""

    def taken(longest: int) -> list[int]:
        length = max(4, min(longest, round(draw.lognormvariate(4.0, 0.7))))
        start = draw.randrange(len(tokens) - length)
        return list(tokens[start : start + length])

    quarter = WINDOW_TOKENS // 4
    return Row(taken(quarter), taken(quarter), taken(quarter))
