"""As the services' children run: nothing is looked up on a hub."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def _offline(tmp_path_factory):
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path_factory.mktemp("datasets"))}
