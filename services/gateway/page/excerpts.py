"""Excerpts of a dataset's rows for its page: what differs between duplicates, and windows as bars. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.excerpts import (
    ClusterExcerpt,
    DatasetExcerpts,
    Excerpt,
    Member,
    OverlapExcerpt,
    PackingExcerpt,
    PackingFigures,
    WindowExcerpt,
)
from services.gateway.page.verdicts import Part, differing

WIDTH = 480
"""Units of the picture's width that stand for a whole window."""
SHADES = 4


@dataclass(frozen=True)
class MemberView:
    """A repeating row beside the kept one."""

    kept: Sequence[Part]
    parts: Sequence[Part]
    member: Member

    @property
    def is_equal(self) -> bool:
        return not any(is_other for _, is_other in (*self.kept, *self.parts))


@dataclass(frozen=True)
class ClusterView:
    kept: Member
    others: Sequence[MemberView]
    duplicates: int


@dataclass(frozen=True)
class Bar:
    """A piece of a window in the picture."""

    left: float
    width: float
    shade: int
    tokens: int


@dataclass(frozen=True)
class WindowView:
    window: WindowExcerpt
    bars: Sequence[Bar]
    padding: int
    """Tokens of the window that nothing fills."""
    unshown: int
    """Tokens of pieces that have no bar of their own."""


@dataclass(frozen=True)
class PackingView:
    chosen: PackingFigures
    figures: Sequence[PackingFigures]
    """Of all lengths, the shortest first."""
    rows_of_others: int
    windows: Sequence[WindowView]
    windows_of_part: int


@dataclass(frozen=True)
class ExcerptsView:
    clusters: Sequence[ClusterView]
    overlaps: Sequence[OverlapExcerpt]
    packing: PackingView | None


def excerpts_view(excerpts: DatasetExcerpts) -> ExcerptsView:
    return ExcerptsView(
        [cluster_view(each) for each in excerpts.clusters if len(each.members) > 1],
        excerpts.overlaps,
        packing_view(excerpts.packing) if excerpts.packing else None,
    )


def cluster_view(cluster: ClusterExcerpt) -> ClusterView:
    kept, *others = cluster.members
    return ClusterView(kept, [_beside(kept, each) for each in others], cluster.duplicates)


def _beside(kept: Member, other: Member) -> MemberView:
    left, right = differing(kept.excerpt.text, other.excerpt.text)
    return MemberView(_between_cuts(left, kept.excerpt), _between_cuts(right, other.excerpt), other)


def _between_cuts(parts: Sequence[Part], excerpt: Excerpt) -> list[Part]:
    before = [("…", False)] if excerpt.is_cut_before else []
    after = [("…", False)] if excerpt.is_cut_after else []
    return [*before, *parts, *after]


def packing_view(packing: PackingExcerpt) -> PackingView:
    room = packing.chosen.max_seq_length
    return PackingView(
        packing.chosen,
        sorted((packing.chosen, *packing.others), key=lambda each: each.max_seq_length),
        packing.rows_of_others,
        [_window_view(window, room) for window in packing.windows],
        packing.windows_of_part,
    )


def _window_view(window: WindowExcerpt, room: int) -> WindowView:
    bars, position = [], 0
    for number, tokens in enumerate(window.pieces):
        left, width = position * WIDTH / room, tokens * WIDTH / room
        bars.append(Bar(round(left, 2), round(width, 2), number % SHADES, tokens))
        position += tokens
    return WindowView(window, bars, room - window.tokens, window.tokens - position)
