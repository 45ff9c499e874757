"""A dataset version as arrays: examples of tokens, and the windows they are packed into."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from schemas.artifacts import DatasetManifest, FileEntry
from schemas.base import FailureClass
from schemas.layout import MANIFEST
from schemas.specification import FORMATS_OF_METHOD, Method
from services.trainer_agent.training.failures import TrainingFailed


@dataclass(frozen=True)
class Example:
    id: int
    """Its place among all examples of the dataset, over all parts."""
    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]

    @property
    def targets(self) -> NDArray[np.intp]:
        """Places of the tokens that are predicted; the first token has nothing before it."""
        return np.flatnonzero(self.loss_mask[1:]) + 1


Window = tuple[Example, ...]


class Windows(Sequence[Window]):
    """All windows of a list of parts, one after another."""

    def __init__(self, parts: Sequence[dict[str, NDArray[Any]]]) -> None:
        self._parts = parts
        self._first_window = np.cumsum([0, *(len(part["window_offsets"]) - 1 for part in parts)])
        self._first_example = np.cumsum([0, *(len(part["example_offsets"]) - 1 for part in parts)])

    def __len__(self) -> int:
        return int(self._first_window[-1])

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        number = int(np.searchsorted(self._first_window, index, side="right")) - 1
        part, local = self._parts[number], index - self._first_window[number]
        start, end = part["window_offsets"][local : local + 2]
        return tuple(self._example(number, int(example)) for example in part["window_examples"][start:end])

    @property
    def largest_token(self) -> int:
        return max((int(part["tokens"].max(initial=0)) for part in self._parts), default=0)

    def _example(self, number: int, local: int) -> Example:
        part = self._parts[number]
        start, end = part["example_offsets"][local : local + 2]
        return Example(
            id=int(self._first_example[number]) + local,
            tokens=part["tokens"][start:end],
            loss_mask=part["loss_mask"][start:end],
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
    training = Windows([_load_part(directory, part) for part in manifest.training])
    if not len(training):
        raise _refusal("it has no training window")
    return Dataset(manifest, training, Windows([_load_part(directory, part) for part in manifest.validation]))


def _load_part(directory: Path, entry: FileEntry) -> dict[str, NDArray[Any]]:
    try:
        part: dict[str, NDArray[Any]] = load_file(directory / entry.path)
        check_part(part)
    except (SafetensorError, KeyError, ValueError) as error:
        raise _refusal(f"{entry.path}: {error}") from error
    return part


def check_part(part: dict[str, NDArray[Any]]) -> None:
    """Every offset must rise and end where its array ends, and every window must name examples there are."""
    num_examples = len(part["example_offsets"]) - 1
    if len(part["loss_mask"]) != len(part["tokens"]):
        raise ValueError(f"loss_mask has {len(part['loss_mask'])} entries, tokens {len(part['tokens'])}")
    for offsets, array in (("example_offsets", "tokens"), ("window_offsets", "window_examples")):
        values = part[offsets].tolist()
        if values[0] != 0 or values[-1] != len(part[array]) or any(a > b for a, b in pairwise(values)):
            raise ValueError(f"{offsets} do not divide {array} of {len(part[array])} entries")
    named = part["window_examples"]
    if len(named) and not (named.min() >= 0 and named.max() < num_examples):
        raise ValueError(f"window_examples name examples outside 0 to {num_examples - 1}")


def _refusal(reason: str) -> TrainingFailed:
    return TrainingFailed(FailureClass.USER, f"dataset cannot be trained on: {reason}")
