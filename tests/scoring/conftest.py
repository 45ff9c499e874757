"""A tiny base model, adapters of it, and files of rows, made once for the whole directory."""

import json
import shutil
from pathlib import Path

import pytest

from tests.devices import device, pytest_generate_tests
from tests.scoring.tiny import TEXT, WORDS, ask, train_adapter
from tests.tiny_model import build_tiny_model, template_text

__all__ = ["device", "pytest_generate_tests"]


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.torch)


@pytest.fixture(scope="package", autouse=True)
def _offline_with_one_thread(tmp_path_factory):
    """Services that other folders start would be offline too."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path_factory.mktemp("datasets"))}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in offline.items():
            patch.setenv(name, value)
        import torch

        torch.set_num_threads(1)
        yield


@pytest.fixture(scope="session")
def base_path(tmp_path_factory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("base"), text=TEXT)


@pytest.fixture(scope="session")
def template_sha256(base_path) -> str:
    import hashlib

    return hashlib.sha256(template_text(base_path).encode()).hexdigest()


@pytest.fixture(scope="session")
def adapter_path(base_path, tmp_path_factory) -> Path:
    """Trained for a few steps to answer every question with `alpha`."""
    exchanges = [(ask(word), "alpha") for word in WORDS]
    return train_adapter(base_path, tmp_path_factory.mktemp("adapter"), exchanges, steps=15)


@pytest.fixture
def copy_of(tmp_path):
    def copy(source: Path) -> Path:
        return Path(shutil.copytree(source, tmp_path / f"copy-{len(list(tmp_path.iterdir()))}"))

    return copy


@pytest.fixture
def rows(tmp_path):
    """rows(name, [row, ...]) writes a file of JSON lines."""

    def write(name: str, contents: list[dict]) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in contents))
        return path

    return write
