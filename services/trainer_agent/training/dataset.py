"""A dataset version as arrays: examples of tokens, and the windows they are packed into."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from schemas.artifacts import CHOSEN, REJECTED, DatasetManifest, FileEntry
from schemas.base import FailureClass
from schemas.layout import MANIFEST
from schemas.specification import FORMATS_OF_METHOD, DatasetFormat, Method
from services.trainer_agent.training.failures import TrainingFailed


@dataclass(frozen=True)
class Example:
    id: int
    """Index among all examples of the dataset, over all parts."""
    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    side: int = 0
    """Side of a preference row, CHOSEN or REJECTED; 0 for other rows."""
    reference: float | None = None
    """Log-probability of the answer by the model at step 0, where the method compares with that; else None."""

    @property
    def targets(self) -> NDArray[np.intp]:
        """Indices of the tokens that are predicted; the first token has nothing before it."""
        return np.flatnonzero(self.loss_mask[1:]) + 1


Window = tuple[Example, ...]


class Windows(Sequence[Window]):
    """All windows of a list of parts, one after another."""

    def __init__(self, parts: Sequence[dict[str, NDArray[Any]]]) -> None:
        self._parts = parts
        self._first_window = np.cumsum([0, *(len(part["window_offsets"]) - 1 for part in parts)])
        self._first_example = np.cumsum([0, *(len(part["example_offsets"]) - 1 for part in parts)])
        self.reference: NDArray[np.float32] | None = None
        """Log-probabilities of the answers by the model at step 0, by the ids of their examples."""

    def __len__(self) -> int:
        return int(self._first_window[-1])

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        number, examples = self._located(index)
        return tuple(self._example(number, int(example)) for example in examples)

    def example_ids(self, index: int) -> NDArray[np.int64]:
        """Return the ids of a window's examples, in order."""
        number, examples = self._located(index)
        ids: NDArray[np.int64] = examples + self._first_example[number]
        return ids

    @property
    def largest_token(self) -> int:
        return max((int(part["tokens"].max(initial=0)) for part in self._parts), default=0)

    @property
    def num_examples(self) -> int:
        return int(self._first_example[-1])

    def _located(self, index: int) -> tuple[int, NDArray[np.int64]]:
        """Return the number of a window's part, and the numbers of its examples within the part."""
        number = int(np.searchsorted(self._first_window, index, side="right")) - 1
        part, local = self._parts[number], index - self._first_window[number]
        start, end = part["window_offsets"][local : local + 2]
        return number, part["window_examples"][start:end]

    def _example(self, number: int, local: int) -> Example:
        part = self._parts[number]
        start, end = part["example_offsets"][local : local + 2]
        example_id = int(self._first_example[number]) + local
        return Example(
            id=example_id,
            tokens=part["tokens"][start:end],
            loss_mask=part["loss_mask"][start:end],
            side=int(part["example_sides"][local]) if "example_sides" in part else 0,
            reference=None if self.reference is None else float(self.reference[example_id]),
        )


@dataclass(frozen=True)
class Dataset:
    manifest: DatasetManifest
    training: Windows
    validation: Windows


def load_dataset(directory: Path, *, version: str, base_sha: str, method: Method) -> Dataset:
    """Read a fetched dataset version.

    Raises: TrainingFailed(user) if it is not the version or not for the base model or the method that the order
    names, or if its arrays do not fit together.
    """
    manifest = DatasetManifest.model_validate_json((directory / MANIFEST).read_bytes())
    for name, actual, expected in (
        ("version", manifest.version, version),
        ("base model", manifest.base_sha, base_sha),
    ):
        if actual != expected:
            raise _refusal(f"{name} is {actual}, the order names {expected}")
    if manifest.format not in FORMATS_OF_METHOD[method]:
        expected_formats = " or ".join(sorted(FORMATS_OF_METHOD[method]))
        raise _refusal(f"it has {manifest.format} rows, method {method} trains on {expected_formats} rows")
    load = partial(_load_part, directory, is_paired=manifest.format is DatasetFormat.PREFERENCE)
    training = Windows([load(part) for part in manifest.training])
    if not len(training):
        raise _refusal("it has no training window")
    return Dataset(manifest, training, Windows([load(part) for part in manifest.validation]))


def _load_part(directory: Path, entry: FileEntry, *, is_paired: bool) -> dict[str, NDArray[Any]]:
    try:
        part: dict[str, NDArray[Any]] = load_file(directory / entry.path)
        check_part(part, is_paired=is_paired)
    except (SafetensorError, KeyError, ValueError) as error:
        raise _refusal(f"{entry.path}: {error}") from error
    return part


def check_part(part: dict[str, NDArray[Any]], *, is_paired: bool = False) -> None:
    """Require that every offset rises and ends where its array ends, and that every window names examples there are.

    Raises: ValueError.
    """
    num_examples = len(part["example_offsets"]) - 1
    if len(part["loss_mask"]) != len(part["tokens"]):
        raise ValueError(f"loss_mask has {len(part['loss_mask'])} entries, tokens {len(part['tokens'])}")
    for offsets, array in (("example_offsets", "tokens"), ("window_offsets", "window_examples")):
        values = part[offsets]
        if values[0] != 0 or values[-1] != len(part[array]) or (values[:-1] > values[1:]).any():
            raise ValueError(f"{offsets} do not divide {array} of {len(part[array])} entries")
    named = part["window_examples"]
    if len(named) and not (named.min() >= 0 and named.max() < num_examples):
        raise ValueError(f"window_examples name examples outside 0 to {num_examples - 1}")
    if is_paired:
        _check_sides(part)


def _check_sides(part: dict[str, NDArray[Any]]) -> None:
    """Require whole pairs in every window: an example with a chosen answer, then the rejected one's of its line.

    Raises: ValueError.
    """
    if "example_sides" not in part:
        raise ValueError("there are no example_sides, and the rows are pairs of answers")
    named = part["window_examples"]
    if len(part["example_sides"]) != len(part["example_lines"]):
        sides, lines = len(part["example_sides"]), len(part["example_lines"])
        raise ValueError(f"example_sides has {sides} entries, example_lines {lines}")
    sides, lines = part["example_sides"][named], part["example_lines"][named]
    in_order = np.array_equal(sides, np.resize([CHOSEN, REJECTED], len(named)))
    if not in_order or (part["window_offsets"] % 2).any() or not np.array_equal(lines[::2], lines[1::2]):
        raise ValueError(
            "example_sides: a window does not hold pairs of a chosen and a rejected answer of one line"
        )


def _refusal(reason: str) -> TrainingFailed:
    return TrainingFailed(FailureClass.USER, f"dataset cannot be trained on: {reason}")
