"""Figures of a finished dataset for its report: lengths, packing, decoded samples."""

import heapq
from array import array
from itertools import pairwise
from typing import Any

import numpy as np

from schemas.report import LengthHistogram, PackingReport, Sample, Segment
from services.ingest.pipeline.examine import Accepted
from services.ingest.pipeline.parts import PartTotals
from services.ingest.pipeline.tokens import Encoded

NUM_SAMPLES = 3
SAMPLE_TOKENS = 1_000


def length_histogram(lengths: "array[int]") -> LengthHistogram | None:
    if not lengths:
        return None
    values = np.asarray(lengths)
    highest = int(values.max())
    edges = [0, 16]
    while edges[-1] < highest:
        edges.append(2 * edges[-1])
    # Buckets are open below and closed above, so that a full window is in the bucket that ends with it.
    rows = np.bincount(np.searchsorted(edges, values) - 1, minlength=len(edges) - 1)
    return LengthHistogram(
        edges=tuple(edges),
        rows=tuple(rows.tolist()),
        minimum=int(values.min()),
        median=float(np.percentile(values, 50)),
        p95=float(np.percentile(values, 95)),
        maximum=highest,
        mean=round(float(values.mean()), 3),
    )


def packing_report(totals: PartTotals, max_seq_length: int) -> PackingReport:
    space = totals.windows * max_seq_length
    return PackingReport(
        windows=totals.windows,
        max_seq_length=max_seq_length,
        tokens=totals.tokens,
        fill_ratio=round(totals.tokens / space, 6) if space else 0.0,
        fewest_windows=-(-totals.tokens // max_seq_length),
    )


class SamplePicker:
    """Picks the rows of the smallest digests: a choice that is spread over the file and the same every time."""

    def __init__(self) -> None:
        self._chosen: list[tuple[int, int, Encoded]] = []

    def offer(self, row: Accepted) -> None:
        if row.encoded is None:
            return
        # Negated, so that the heap gives up its largest digest first.
        entry = (-int.from_bytes(row.digest), row.line, row.encoded)
        if len(self._chosen) < NUM_SAMPLES:
            heapq.heappush(self._chosen, entry)
        elif entry[:2] > self._chosen[0][:2]:
            heapq.heapreplace(self._chosen, entry)

    def samples(self, tokenizer: Any) -> tuple[Sample, ...]:
        chosen = sorted(self._chosen, key=lambda entry: entry[1])
        return tuple(sample_of(line, encoded, tokenizer) for _, line, encoded in chosen)


def sample_of(line: int, encoded: Encoded, tokenizer: Any) -> Sample:
    """The row as the model reads it, in runs of equal mask."""
    tokens, mask = encoded.tokens[:SAMPLE_TOKENS], encoded.mask[:SAMPLE_TOKENS]
    edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(tokens)]
    segments = tuple(
        Segment(text=tokenizer.decode(tokens[start:end].tolist()), is_target=bool(mask[start]))
        for start, end in pairwise(edges)
    )
    return Sample(
        line=line,
        num_tokens=len(encoded.tokens),
        segments=segments,
        is_cut=len(encoded.tokens) > SAMPLE_TOKENS,
    )
