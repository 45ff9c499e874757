"""Excerpts of the rows as the validating process writes them, of a file with planted faults."""

import pytest

from schemas.excerpts import DatasetExcerpts
from tests.integration.test_ingest_pipeline import BENCHMARK, CONTEXT, PLANTED, Bench, Made, rows


@pytest.fixture(scope="module")
async def planted(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return await Bench(tmp_path_factory.mktemp("ingest")).run(
        PLANTED,
        spec={"share": 0.2},
        holdout=rows(1, seed=99) + rows(50, seed=2),
        validation=rows(1, seed=98) + rows(9, seed=3),
        safety_mix=rows(40, seed=4),
        sources={"arc": [{"question": BENCHMARK, "choices": ["a", "b"]}]},
    )


@pytest.fixture
def excerpts(planted: Made) -> DatasetExcerpts:
    return DatasetExcerpts.model_validate_json((planted.order.output / "excerpts.json").read_bytes())


def test_texts_stand_beside_what_they_repeat(excerpts: DatasetExcerpts) -> None:
    members = {
        tuple((each.file, each.line) for each in cluster.members): [
            each.excerpt.text for each in cluster.members
        ]
        for cluster in excerpts.clusters
    }
    kept, near = members[("training", 2), ("training", 62)]
    assert kept.replace("?", "?!", 1) == near
    assert {*members} == {
        (("training", 1), ("training", 61)),
        (("training", 2), ("training", 62)),
        (("holdout", 1), ("training", 68)),
        (("validation", 1), ("training", 69)),
    }


def test_only_what_a_row_holds_of_an_operators_item_is_shown(excerpts: DatasetExcerpts) -> None:
    overlaps = {each.line: each for each in excerpts.overlaps}
    assert {line: (each.source, each.kind) for line, each in overlaps.items()} == {
        66: ("arc", "benchmark"),
        68: ("holdout", "holdout"),
    }
    benchmark, holdout = overlaps[66], overlaps[68]
    assert (benchmark.shared_words, benchmark.longest_run) == (40, 40)
    assert benchmark.item_text.text == BENCHMARK
    assert [run.text for run in benchmark.row.runs if run.is_shared] == [BENCHMARK]
    assert benchmark.row.text == f"user: {BENCHMARK}\n\nassistant: No idea."
    assert holdout.item_text.text == holdout.row.text


def test_the_packing_is_the_one_of_the_parts(planted: Made, excerpts: DatasetExcerpts) -> None:
    packing, counts = excerpts.packing, planted.manifest.counts
    assert packing is not None
    chosen = packing.chosen
    assert (chosen.windows, chosen.tokens, chosen.rows) == (counts.windows, counts.tokens, counts.rows)
    assert (chosen.pieces, chosen.long_rows) == (counts.rows, 1)
    assert packing.windows_of_part == counts.windows
    assert all(sum(window.pieces) == window.tokens <= CONTEXT for window in packing.windows)
    assert chosen.padding_ratio < chosen.unpacked_padding_ratio
    assert [each.max_seq_length for each in packing.others] == [64, 128], "line 67 is unknown when longer"
