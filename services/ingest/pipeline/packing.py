"""Packing examples into windows of a fixed number of tokens: best-fit decreasing, deterministic."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.excerpts import MAX_PIECES_OF_A_WINDOW, MAX_WINDOWS, WindowExcerpt

PART_TOKENS = 1 << 26
"""A part is closed at the first example that reaches this many tokens; windows never cross parts."""


@dataclass(frozen=True)
class Packing:
    """Window w holds window_examples[window_offsets[w]:window_offsets[w+1]]; each example is in one."""

    window_offsets: "array[int]"
    window_examples: "array[int]"

    @property
    def num_windows(self) -> int:
        return len(self.window_offsets) - 1


def pack(lengths: Sequence[int], *, max_seq_length: int) -> Packing:
    """Pack the longest first, each into the fullest window that still takes it; equal lengths in order of the
    file."""
    windows: list[list[int]] = []
    by_space: dict[int, list[int]] = {}
    # Bit s is set while some window has exactly s tokens free: the best fit is the lowest from a length on.
    spaces = 0
    for example in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[example]
        if not 0 < length <= max_seq_length:
            raise ValueError(f"example {example} has {length} tokens, expected 1 to {max_seq_length}")
        fitting = spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            window = by_space[space].pop()
            if not by_space[space]:
                spaces ^= 1 << space
        else:
            space, window = max_seq_length, len(windows)
            windows.append([])
        windows[window].append(example)
        left = space - length
        if left:
            by_space.setdefault(left, []).append(window)
            spaces |= 1 << left
    return _flat(windows)


def _flat(windows: list[list[int]]) -> Packing:
    offsets, examples = array("q", [0]), array("q")
    for window in windows:
        examples.extend(window)
        offsets.append(len(examples))
    return Packing(offsets, examples)


def window_excerpts(lengths: Sequence[int], packing: Packing) -> tuple[WindowExcerpt, ...]:
    """Return windows at equal distances: the first ones alone would be those of the longest examples."""
    shown = min(MAX_WINDOWS, packing.num_windows)
    indices = [round(place * (packing.num_windows - 1) / max(1, shown - 1)) for place in range(shown)]
    return tuple(_window_excerpt(index, lengths, packing) for index in indices)


def _window_excerpt(index: int, lengths: Sequence[int], packing: Packing) -> WindowExcerpt:
    start, end = packing.window_offsets[index : index + 2]
    pieces = [lengths[example] for example in packing.window_examples[start:end]]
    return WindowExcerpt(index=index, pieces=tuple(pieces[:MAX_PIECES_OF_A_WINDOW]), tokens=sum(pieces))
