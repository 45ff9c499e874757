"""Files of variables are read as a shell would."""

from pathlib import Path

import pytest

from shared.env_file import read_env_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runner.env"


def test_a_file_is_read_as_a_shell_would(path):
    path.write_text("# ours\nRUNNER_A=1\nexport RUNNER_B='two words'\n\nRUNNER_C='a=b'  # an end\n")
    assert read_env_file(path) == {"RUNNER_A": "1", "RUNNER_B": "two words", "RUNNER_C": "a=b"}


def test_a_fault_names_the_file_and_the_line(path):
    path.write_text("RUNNER_A=1\nRUNNER_B\n")
    with pytest.raises(ValueError, match=r"runner\.env, line 2: found 'RUNNER_B', expected NAME=value"):
        read_env_file(path)
