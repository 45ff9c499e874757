"""A curve in one line of text."""

from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 40


def sparkline(values: Sequence[float], *, width: int = WIDTH) -> str:
    """Return at most `width` blocks, each as high as the mean of its share of the values: the lowest for the least
    mean, the highest for the greatest."""
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)] if count else []
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    if not means:
        return ""
    least, span = min(means), max(means) - min(means)
    heights = [round((mean - least) / span * (len(BLOCKS) - 1)) if span else 0 for mean in means]
    return "".join(BLOCKS[height] for height in heights)
