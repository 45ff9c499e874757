"""Writing the arrays of DatasetManifest: spooled to disk, packed, one safetensors file per part."""

import hashlib
import json
import shutil
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from schemas import layout
from schemas.artifacts import CHOSEN, REJECTED, FileEntry
from schemas.excerpts import WindowExcerpt
from services.ingest.pipeline.packing import PART_TOKENS, Packing, pack, window_excerpts
from services.ingest.pipeline.tokens import Encoded, sides_of


class TokenSpool:
    """Token ids and masks of rows on disk, appended one after another; lengths, lines and borders in memory."""

    def __init__(self, directory: Path, name: str) -> None:
        self._tokens = (directory / f"{name}.tokens").open("w+b")
        self._mask = (directory / f"{name}.mask").open("w+b")
        self.offsets = array("q", [0])
        self.lines = array("q")
        self.borders = array("q")

    def add(self, line: int, row: Encoded) -> None:
        self._tokens.write(row.tokens.astype("<i4").tobytes())
        self._mask.write(row.mask.tobytes())
        self.offsets.append(self.offsets[-1] + len(row.tokens))
        self.lines.append(line)
        self.borders.append(row.border)

    def get(self, index: int) -> Encoded:
        start, end = self.offsets[index : index + 2]
        tokens = _read(self._tokens, 4 * start, 4 * (end - start))
        mask = _read(self._mask, start, end - start)
        return Encoded(np.frombuffer(tokens, np.int32), np.frombuffer(mask, np.uint8), self.borders[index])

    @property
    def num_tokens(self) -> int:
        return self.offsets[-1]

    def rewound(self) -> tuple[BinaryIO, BinaryIO]:
        self._tokens.seek(0)
        self._mask.seek(0)
        return self._tokens, self._mask

    def close(self) -> None:
        for file in (self._tokens, self._mask):
            file.close()
            Path(file.name).unlink()


@dataclass
class PartTotals:
    rows: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    windows: int = 0
    pieces: int = 0
    """Number of rows and pieces of rows in the windows."""
    cut_rows: int = 0


class PartWriter:
    """Collects rows and writes `parts/<sha256>`. Equal rows in equal order give equal bytes."""

    def __init__(self, output: Path, spool: Callable[[], TokenSpool], *, max_seq_length: int) -> None:
        self.totals = PartTotals()
        self.lengths = array("i")
        self.windows: tuple[WindowExcerpt, ...] = ()
        """Some windows of the first part."""
        self.windows_of_part = 0
        self._output = output
        self._window_tokens = max_seq_length
        self._entries: list[FileEntry] = []
        self._new_spool = spool
        self._spool = spool()

    def add(self, line: int, row: Encoded) -> None:
        for piece in pieces_of(row, max_tokens=self._window_tokens):
            self._spool.add(line, piece)
            self.totals.tokens += len(piece.tokens)
            self.totals.pieces += 1
        self.lengths.append(len(row.tokens))
        self.totals.rows += 1
        self.totals.cut_rows += row.is_cut
        self.totals.loss_tokens += sum(int(side.mask[1:].sum()) for side in sides_of(row))
        if self._spool.num_tokens >= PART_TOKENS:
            self._close_part()

    def close(self) -> tuple[FileEntry, ...]:
        if self._spool.num_tokens:
            self._close_part()
        self._spool.close()
        return tuple(self._entries)

    def _close_part(self) -> None:
        lengths = np.diff(np.asarray(self._spool.offsets)).tolist()
        packing = pack(lengths, max_seq_length=self._window_tokens)
        self.totals.windows += packing.num_windows
        if not self._entries:
            self.windows, self.windows_of_part = window_excerpts(lengths, packing), packing.num_windows
        self._entries.append(write_part(self._spool, packing, self._output))
        self._spool.close()
        self._spool = self._new_spool()


def pieces_of(row: Encoded, *, max_tokens: int) -> Iterator[Encoded]:
    """Yield the row itself, or where it is longer, pieces of it that fit a window.

    A piece begins with the last token of the one before it: so every token but the first of the row is predicted
    once.
    """
    if len(row.tokens) <= max_tokens:
        yield row
        return
    for piece in piece_slices(len(row.tokens), max_tokens=max_tokens):
        yield Encoded(row.tokens[piece], row.mask[piece])


def piece_slices(length: int, *, max_tokens: int) -> Iterator[slice]:
    for start in range(0, length - 1, max_tokens - 1):
        yield slice(start, min(start + max_tokens, length))


def write_part(spool: TokenSpool, packing: Packing, output: Path) -> FileEntry:
    """Write a safetensors file as a stream: an 8-byte header length, the JSON header, the arrays in its order."""
    is_paired = any(spool.borders)
    small = _pairs(spool, packing) if is_paired else _rows(spool, packing)
    sides = bytes([CHOSEN, REJECTED]) * len(spool.lines) if is_paired else b""
    shapes = [(name, "I64", len(values), 8) for name, values in small.items()]
    shapes += [("tokens", "I32", spool.num_tokens, 4), ("loss_mask", "U8", spool.num_tokens, 1)]
    shapes += [("example_sides", "U8", len(sides), 1)] if is_paired else []
    temporary = output / layout.part("incomplete")
    temporary.parent.mkdir(exist_ok=True)
    with temporary.open("wb") as file:
        file.write(_header(shapes))
        for values in small.values():
            file.write(np.asarray(values, "<i8").tobytes())
        for source in spool.rewound():
            shutil.copyfileobj(source, file)
        file.write(sides)
    return _named_by_digest(temporary)


def _rows(spool: TokenSpool, packing: Packing) -> dict[str, Sequence[int]]:
    return {
        "example_offsets": spool.offsets,
        "example_lines": spool.lines,
        "window_offsets": packing.window_offsets,
        "window_examples": packing.window_examples,
    }


def _pairs(spool: TokenSpool, packing: Packing) -> dict[str, Sequence[int]]:
    """Return the same arrays as `_rows`, where each row is two examples."""
    starts = np.asarray(spool.offsets)
    edges = np.stack([starts[:-1], starts[:-1] + np.asarray(spool.borders)], axis=1)
    first = 2 * np.asarray(packing.window_examples)
    return {
        "example_offsets": array("q", [*edges.ravel().tolist(), spool.num_tokens]),
        "example_lines": array("q", np.repeat(spool.lines, 2).tolist()),
        "window_offsets": array("q", (2 * np.asarray(packing.window_offsets)).tolist()),
        "window_examples": array("q", np.stack([first, first + 1], axis=1).ravel().tolist()),
    }


def _header(shapes: list[tuple[str, str, int, int]]) -> bytes:
    header: dict[str, object] = {}
    start = 0
    for name, dtype, length, width in shapes:
        header[name] = {"dtype": dtype, "shape": [length], "data_offsets": [start, start + length * width]}
        start += length * width
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)
    return len(content).to_bytes(8, "little") + content


def _named_by_digest(temporary: Path) -> FileEntry:
    with temporary.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    final = temporary.with_name(sha256)
    temporary.replace(final)
    return FileEntry(path=layout.part(sha256), size_bytes=final.stat().st_size, sha256=sha256)


def _read(file: BinaryIO, start: int, length: int) -> bytes:
    file.flush()
    file.seek(start)
    content = file.read(length)
    file.seek(0, 2)
    return content
