"""Excerpts of a dataset's rows as lines of text. Pure."""

from collections.abc import Iterator
from difflib import unified_diff

from schemas.excerpts import (
    ClusterExcerpt,
    DatasetExcerpts,
    Excerpt,
    OverlapExcerpt,
    PackingExcerpt,
    PackingFigures,
)


def excerpts_text(excerpts: DatasetExcerpts) -> str:
    """Return clusters as differences to the kept row, overlaps with shared words in [[ ]], and packing figures."""
    lines = [
        *(line for cluster in excerpts.clusters for line in _cluster(cluster)),
        *(line for overlap in excerpts.overlaps for line in _overlap(overlap)),
        *(_packing(excerpts.packing) if excerpts.packing else ()),
    ]
    return "\n".join(lines) or "no duplicates, no contaminated rows and no windows to show"


def _cluster(cluster: ClusterExcerpt) -> Iterator[str]:
    kept, *others = cluster.members
    yield f"line {kept.line} of the {kept.file} file is kept; repeated by {cluster.duplicates}:"
    for other in others:
        alike = "equal" if other.similarity == 1 else f"similarity {other.similarity:.1%}"
        yield f"  line {other.line} of the {other.file} file, {alike}"
        difference = unified_diff(
            _plain(kept.excerpt).splitlines(), _plain(other.excerpt).splitlines(), n=0, lineterm=""
        )
        for line in difference:
            if not line.startswith(("---", "+++", "@@")):
                yield f"    {line}"
    yield ""


def _overlap(overlap: OverlapExcerpt) -> Iterator[str]:
    yield (
        f"line {overlap.line} of the {overlap.file} file holds {overlap.share:.1%} of item {overlap.item} of "
        f"{overlap.source}: {overlap.shared_words} shared words, {overlap.longest_run} in one run"
    )
    yield f"  row:  {_marked(overlap.row)}"
    yield f"  item: {_marked(overlap.item_text)}"
    yield ""


def _packing(packing: PackingExcerpt) -> Iterator[str]:
    yield "  window      rows   longer    windows  padding  without packing"
    yield f"{_figures(packing.chosen)}  the dataset as it is trained on"
    for figures in packing.others:
        yield f"{_figures(figures)}  if chosen, of the first {packing.rows_of_others} rows"


def _figures(figures: PackingFigures) -> str:
    return (
        f"{figures.max_seq_length:8} {figures.rows:9} {figures.long_rows:8} {figures.windows:10} "
        f"{figures.padding_ratio:8.1%} {figures.unpacked_padding_ratio:16.1%}"
    )


def _plain(excerpt: Excerpt) -> str:
    return _with_cuts(excerpt, excerpt.text)


def _marked(excerpt: Excerpt) -> str:
    runs = [
        f"({run.hidden_words} words)"
        if run.hidden_words
        else f"[[{run.text}]]"
        if run.is_shared
        else run.text
        for run in excerpt.runs
    ]
    return _with_cuts(
        excerpt, " ".join(runs) if any(run.hidden_words for run in excerpt.runs) else "".join(runs)
    )


def _with_cuts(excerpt: Excerpt, text: str) -> str:
    return f"{'… ' if excerpt.is_cut_before else ''}{text}{' …' if excerpt.is_cut_after else ''}"
