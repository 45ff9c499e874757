"""Which reference answers of a holdout are longer than the gate lets a model answer."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Protocol

from schemas.specification import DatasetFormat, DatasetPolicy
from services.ingest.pipeline.files import HOLDOUT, open_file, reader_of
from services.ingest.pipeline.formats import parse_example
from services.ingest.pipeline.lines import Line, parse_object
from services.ingest.pipeline.rules import BadRow

BATCH_ROWS = 256


class Tokenizer(Protocol):
    """What a tokenizer of `transformers` does with texts."""

    def __call__(
        self, texts: list[str], *, add_special_tokens: bool, verbose: bool
    ) -> Mapping[str, list[list[int]]]: ...


def count_long_answers(
    path: Path, *, expected: DatasetFormat | None, policy: DatasetPolicy, tokenizer: Tokenizer, budget: int
) -> int:
    """Count rows whose last turn has more than `budget` tokens, but for rows that break a rule: the gate asks none of
    them."""
    too_long = 0
    with open_file(path, HOLDOUT) as stream:
        lines = reader_of(stream, HOLDOUT, policy)
        answers = (answer for line in lines if (answer := _answer(line, expected, policy)) is not None)
        while batch := list(islice(answers, BATCH_ROWS)):
            ids = tokenizer(batch, add_special_tokens=False, verbose=False)["input_ids"]
            too_long += sum(len(each) > budget for each in ids)
    return too_long


def _answer(line: Line, expected: DatasetFormat | None, policy: DatasetPolicy) -> str | None:
    try:
        row = parse_object(line, max_row_bytes=policy.max_row_bytes)
        return parse_example(row, expected=expected, line=line.number).turns[-1].content
    except BadRow:
        return None
