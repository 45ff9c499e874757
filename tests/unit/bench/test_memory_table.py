"""What the guide says of large models is what the estimate says."""

from pathlib import Path

from bench.training.memory_table import table

GUIDE = Path(__file__).parents[3] / "docs/guides/gpu.md"


def test_the_guide_has_the_table():
    assert table() in GUIDE.read_text(), "print it again: python -m bench.training.memory_table"
