"""What both sides of `bench.training.starts` train: a tiny model, and many short rows."""

import json
import random
from pathlib import Path

from schemas.specification import CheckpointSpec, LoraSpec, Method, Recipe
from tests.tiny_model import build_tiny_model
from tests.training.jobs import write_dataset

BATCH_ROWS = 4
NUM_STEPS = 10_040
NUM_ROWS = BATCH_ROWS * NUM_STEPS
NUM_VALIDATION = 8
VOCAB_SIZE = 512
WINDOW_TOKENS = 32
RANK, DROPOUT = 4, 0.1
LEARNING_RATE = 1e-4
SEED = 7
BASE, DATASET, ROWS = "base", "dataset", "rows.json"


def make(directory: Path) -> tuple[Path, Path]:
    """The base model and the dataset version; `rows.json` beside them has the rows to train on, as token ids."""
    text = "\n".join(f"def f{number}(x): return x + {number}" for number in range(2000))
    base_dir = build_tiny_model(directory / BASE, text=text, vocab_size=VOCAB_SIZE)
    draw = random.Random(SEED)
    rows = [
        [draw.randrange(10, VOCAB_SIZE) for _ in range(draw.randint(16, WINDOW_TOKENS))]
        for _ in range(NUM_ROWS + NUM_VALIDATION)
    ]
    windows = [[(row, [0, *[1] * (len(row) - 1)])] for row in rows]
    dataset_dir = write_dataset(
        directory / DATASET, windows, num_validation=NUM_VALIDATION, max_seq_length=WINDOW_TOKENS
    )
    (directory / ROWS).write_text(json.dumps(rows[:NUM_ROWS]))
    return base_dir, dataset_dir


def the_recipe() -> Recipe:
    return Recipe(
        method=Method.LORA,
        lora=LoraSpec(rank=RANK, dropout=DROPOUT),
        learning_rate=LEARNING_RATE,
        num_epochs=1,
        batch_size=BATCH_ROWS,
        micro_batch_size=BATCH_ROWS,
        seed=SEED,
        checkpoint=CheckpointSpec(every_steps=10, every_seconds=86_400),
    )
