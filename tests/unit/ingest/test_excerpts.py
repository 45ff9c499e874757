"""What is shown of rows is bounded, begins before what matters, and gives nothing of an operator's item away."""

import random
from array import array

import pytest

from schemas.excerpts import MAX_CHARACTERS, MAX_CLUSTERS, MAX_OVERLAPS, MAX_WINDOWS, Excerpt
from schemas.report import Duplicate, Overlap
from services.ingest.pipeline.contamination import registered_source
from services.ingest.pipeline.counts import FileCounts
from services.ingest.pipeline.duplicates import Kept
from services.ingest.pipeline.excerpts import (
    CHARACTERS_BEFORE,
    choose_clusters,
    choose_overlaps,
    cut_around,
    overlap_excerpt,
    without_the_rest,
)
from services.ingest.pipeline.formats import Turn
from services.ingest.pipeline.items import Item
from services.ingest.pipeline.packing import pack, window_excerpts
from services.ingest.pipeline.packing_figures import figures_of, first_rows, other_lengths
from services.ingest.pipeline.shared_runs import compared, written_item, written_row
from services.ingest.pipeline.text import NO_KEYS

WORDS = [f"w{number}" for number in range(60)]
ROW = (
    Turn("system", "Be brief.", "messages[0]"),
    Turn("user", "Say: " + " ".join(WORDS[:30]), "messages[1]"),
)


def shown(excerpt: Excerpt) -> list[str]:
    return [run.text if run.is_shared or run.text else f"<{run.hidden_words}>" for run in excerpt.runs]


def overlap(kind: str = "benchmark", *, item: str, turns: tuple[Turn, ...] = ROW, answer: str = ""):
    asked = Item(4, (item,), answer)
    return overlap_excerpt(
        "training",
        Overlap(line=7, source="arc", item=4, share=0.5, is_contaminated=True),
        written_row(turns),
        written_item(asked),
        source=registered_source("arc", (asked,)),
        kind=kind,  # type: ignore[arg-type]
    )


class TestOverlap:
    def test_words_of_an_operators_item_that_the_row_does_not_hold_are_counted_only(self) -> None:
        for kind in ("benchmark", "suite"):
            excerpt = overlap(kind, item=f"hidden secret {' '.join(WORDS[5:40])}")
            assert shown(excerpt.item_text) == ["<2>", " ".join(WORDS[5:30]), "<10>"]
            assert "secret" not in excerpt.model_dump_json()
            assert "w30" not in excerpt.model_dump_json()

    def test_the_tenants_own_item_is_shown_whole(self) -> None:
        excerpt = overlap("holdout", item=f"own words {' '.join(WORDS[5:40])}")
        assert shown(excerpt.item_text) == ["own words ", " ".join(WORDS[5:30]), f" {' '.join(WORDS[30:40])}"]

    def test_the_run_is_marked_in_the_row_and_measured(self) -> None:
        excerpt = overlap(item=" ".join(WORDS[5:40]))
        assert [run.text for run in excerpt.row.runs if run.is_shared] == [" ".join(WORDS[5:30])]
        assert (excerpt.shared_words, excerpt.longest_run) == (25, 25)
        assert excerpt.row.text == f"system: Be brief.\n\nuser: Say: {' '.join(WORDS[:30])}"

    def test_two_runs_are_two_spans(self) -> None:
        excerpt = overlap(item=f"{' '.join(WORDS[:14])} between {' '.join(WORDS[14:30])}")
        assert shown(excerpt.item_text) == [" ".join(WORDS[:14]), "<1>", " ".join(WORDS[14:30])]
        assert (excerpt.shared_words, excerpt.longest_run) == (30, 30)

    def test_a_short_question_is_found_as_a_whole_or_with_its_answer(self) -> None:
        turns = (Turn("user", "What is a heap?", "messages[0]"), Turn("assistant", "A tree.", "messages[1]"))
        excerpt = overlap(item="What is a heap?", turns=turns)
        assert shown(excerpt.item_text) == ["What is a heap?"]
        assert excerpt.longest_run == 4

    def test_case_counts_no_more_than_for_the_filter(self) -> None:
        assert overlap(item=" ".join(WORDS[5:40]).upper()).longest_run == 25

    @pytest.mark.parametrize("text", ["", " ", "\n\t"])
    def test_nothing_is_shared_with_nothing(self, text: str) -> None:
        row, (item,) = written_row((Turn("user", "words", "prompt"),)), written_item(Item(1, (text,)))
        in_row, in_item = compared(row, item, NO_KEYS)
        assert (in_row.num_words, in_item.spans, in_item.begin) == (0, (), 0)


class TestCut:
    @pytest.mark.parametrize("begin", [0, 100, 5_000, 9_999])
    def test_a_text_is_cut_around_what_matters(self, begin: int) -> None:
        text = "".join(random.Random(1).choices("ab c", k=10_000))
        excerpt = cut_around(text, ((begin, begin + 1),), begin)
        assert len(excerpt.text) == MAX_CHARACTERS
        assert excerpt.text in text
        assert [run.text for run in excerpt.runs if run.is_shared] == [text[begin]]
        assert excerpt.is_cut_before == (begin > CHARACTERS_BEFORE)
        assert excerpt.is_cut_after == (begin < 9_000)

    def test_a_short_text_is_whole(self) -> None:
        assert cut_around("whole", (), 4) == Excerpt(runs=cut_around("whole", (), 0).runs)

    def test_texts_side_by_side_are_cut_at_the_same_place(self) -> None:
        long, short = "x" * 5_000, "x" * 3_000
        excerpts = [cut_around(text, (), 2_900, longest=5_000) for text in (long, short)]
        assert [len(excerpt.text) for excerpt in excerpts] == [MAX_CHARACTERS, 300]

    def test_shared_words_of_a_long_item_are_bounded(self) -> None:
        spans = tuple((start, start + 500) for start in range(0, 100_000, 1_000))
        excerpt = without_the_rest("w" * 100_000, spans)
        assert len(excerpt.text) == MAX_CHARACTERS
        assert excerpt.is_cut_after


class TestChoice:
    def test_the_largest_clusters_the_least_similar_and_some_others_are_shown(self) -> None:
        counts = FileCounts("training", "sha")
        for line in range(1, 101):
            size, similarity = (9, 1.0) if line <= 10 else (1, 1.0 - line / 1000)
            counts.clusters[Kept("training", line)] = [
                Duplicate(line=1000 + line, similarity=similarity)
            ] * size
        chosen = choose_clusters([counts])
        lines = [cluster.kept.line for cluster in chosen]
        assert len(lines) == len({*lines}) == MAX_CLUSTERS
        assert lines[:15] == [*range(1, 11), *range(100, 95, -1)]
        assert lines[15:] != sorted(lines[15:]), "the rest is spread over the file"

    def test_the_kept_row_is_beside_the_least_similar_ones(self) -> None:
        counts = FileCounts("training", "sha")
        similarities = (1.0, 0.95, 0.9, 0.99)
        counts.clusters[Kept("training", 1)] = [
            Duplicate(line=line, similarity=similarity)
            for line, similarity in enumerate(similarities, start=2)
        ]
        (cluster,) = choose_clusters([counts])
        assert [each.line for each in cluster.shown] == [4, 3]

    def test_contaminated_rows_alone_are_shown_each_once_the_largest_share_first(self) -> None:
        counts = FileCounts("training", "sha")
        counts.overlaps = [
            Overlap(line=line, source=source, item=1, share=line / 100, is_contaminated=line > 50)
            for line in range(1, 101)
            for source in ("arc", "mmlu")
        ]
        chosen = [overlap for _, overlap in choose_overlaps([counts])]
        assert [each.line for each in chosen] == [*range(100, 100 - MAX_OVERLAPS, -1)]


class TestPackingFigures:
    def test_windows_at_equal_distances_show_the_last_ones_too(self) -> None:
        lengths = [*range(1, 200)]
        windows = window_excerpts(lengths, pack(lengths, max_seq_length=200))
        assert len(windows) == MAX_WINDOWS
        assert windows[0].index == 0
        assert windows[-1].index == pack(lengths, max_seq_length=200).num_windows - 1
        assert all(sum(window.pieces) == window.tokens <= 200 for window in windows)
        assert [window.index for window in window_excerpts([3], pack([3], max_seq_length=9))] == [0]

    @pytest.mark.parametrize(
        ("policy", "pieces", "tokens"),
        [
            ({"truncates": False, "is_continued": False}, 2, 11),
            ({"truncates": True, "is_continued": False}, 3, 21),
            ({"truncates": False, "is_continued": True}, 5, 37),
        ],
    )
    def test_a_row_over_the_window_is_left_out_cut_or_continued(
        self, policy: dict[str, bool], pieces: int, tokens: int
    ) -> None:
        figures = figures_of([4, 7, 24], 10, **policy)
        assert (figures.rows, figures.long_rows, figures.pieces, figures.tokens) == (3, 1, pieces, tokens)
        assert figures.padding_ratio == round(1 - tokens / (10 * figures.windows), 6)
        assert figures.unpacked_padding_ratio == round(1 - tokens / (10 * pieces), 6)

    def test_no_window_is_longer_than_the_context(self) -> None:
        assert other_lengths(512, 1024) == [64, 128, 256, 1024]

    def test_other_lengths_are_computed_of_a_bounded_number_of_rows(self) -> None:
        assert len(first_rows(array("i", [8]) * 100_000)) == 50_000
        assert len(first_rows(array("i", [1 << 25]) * 10)) == 2
        assert len(first_rows(array("i", [1 << 27]))) == 1
