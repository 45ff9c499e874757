import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from schemas.base import DeviceKind
from tests.devices import device, pytest_generate_tests
from tests.tiny_model import build_tiny_model
from tests.training.jobs import (
    WINDOW_TOKENS,
    Inputs,
    Tokens,
    write_dataset,
    write_documents,
    write_preferences,
)

__all__ = ["device", "pytest_generate_tests"]
NUM_WINDOWS = 32


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.torch)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def inputs(packed_examples: Inputs, device: DeviceKind) -> Inputs:
    return replace(packed_examples, device=device)


@pytest.fixture(scope="session")
def texts(documents: Inputs, device: DeviceKind) -> Inputs:
    return replace(documents, device=device)


@pytest.fixture(scope="session")
def preferences(pairs: Inputs, device: DeviceKind) -> Inputs:
    return replace(pairs, device=device)


@pytest.fixture(scope="session")
def packed_examples(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """A tiny Llama and the sources of `textwrap`, cut into examples of many lengths."""
    directory = tmp_path_factory.mktemp("inputs")
    text = Path(textwrap.__file__).read_text()
    base_dir = build_tiny_model(directory / "base", text=text)
    windows = packed_windows(base_dir, text)
    return Inputs(base_dir, write_dataset(directory / "dataset", windows))


@pytest.fixture(scope="session")
def documents(packed_examples: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """The same model, and paragraphs of `textwrap` as documents: most shorter than a window, some longer."""
    paragraphs = Path(textwrap.__file__).read_text().split("\n\n")
    rows = [text for text in paragraphs if text.strip()]
    directory = tmp_path_factory.mktemp("texts") / "dataset"
    base_dir = packed_examples.base_dir
    return Inputs(base_dir, write_documents(directory, base_dir, rows))


@pytest.fixture(scope="session")
def pairs(packed_examples: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """The same model; lines of `textwrap`, each with how it continues and with how it does not."""
    lines = [line.strip() for line in Path(textwrap.__file__).read_text().splitlines()]
    long = [line for line in lines if len(line) > 15]
    rows = [
        (line[: 5 + index % 4], line[5 + index % 4 :][:22], other[: 8 + index % 12])
        for index, (line, other) in enumerate(zip(long[:72], long[100:172], strict=True))
    ]
    directory = tmp_path_factory.mktemp("preferences") / "dataset"
    base_dir = packed_examples.base_dir
    return Inputs(base_dir, write_preferences(directory, base_dir, rows))


def packed_windows(base_dir: Path, text: str) -> list[list[Tokens]]:
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(base_dir)(text)["input_ids"]
    windows, start = [], 0
    for window in range(NUM_WINDOWS):
        # From one long example to eight short ones, and not always full.
        lengths = [(WINDOW_TOKENS - window % 5) // (window % 8 + 1)] * (window % 8 + 1)
        windows.append([])
        for length in lengths:
            ids = [tokens[(start + i) % len(tokens)] for i in range(length)]
            windows[-1].append((ids, [int(i >= length // 3) for i in range(length)]))
            start += length
    return windows
