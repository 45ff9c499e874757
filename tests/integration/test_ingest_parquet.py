"""Parquet through the real pipeline: the dataset is that of the same rows as JSON lines, and bad files are refused."""

import random
from typing import Any

import pyarrow as pa
import pytest

from schemas.specification import DatasetPolicy
from services.ingest.pipeline.order import LimitExceeded
from tests.integration import test_ingest_pipeline
from tests.integration.test_ingest_pipeline import GENEROUS, Bench, carry_out, chat, rows, sentence
from tests.parquet import parquet_of

bench = test_ingest_pipeline.bench

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
TRAINING = [
    *rows(300),
    {"messages": [*chat("a", "b")["messages"], *chat("c", "d", weight=0)["messages"]]},
    chat("What is it?", " "),
    {**chat("Which?", "That."), "tools": [TOOL]},
    rows(1, seed=21)[0],
    rows(301)[7],
]
FILES: dict[str, Any] = {
    "validation": rows(20, seed=20),
    "holdout": rows(120, seed=21),
    "safety_mix": rows(60, seed=22),
}


def as_parquet(files: dict[str, Any]) -> dict[str, Any]:
    return {name: parquet_of(content, row_group_size=50) for name, content in files.items()}


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_dataset_is_that_of_the_same_rows_as_json_lines(bench: Bench, workers: int) -> None:
    item = sentence(random.Random(3), 40)
    training = [*TRAINING, chat(item, "No idea.")]
    policy = {"policy": DatasetPolicy(max_bad_ratio=0.5)}
    lines = await bench.run(training, spec=dict(policy), sources={"arc": [{"text": item}]}, **FILES)
    parquet = await bench.run(
        parquet_of(training, row_group_size=70, compression="zstd"),
        spec=dict(policy),
        sources={"arc": parquet_of([{"text": item}])},
        workers=workers,
        **as_parquet(FILES),
    )
    assert parquet.manifest.training == lines.manifest.training
    assert parquet.manifest.validation == lines.manifest.validation
    assert parquet.manifest.counts == lines.manifest.counts
    assert parquet.manifest.counts.contaminated_by_source == {"arc": 1, "holdout": 1}
    for role in ("training", *FILES):
        of_lines, of_parquet = (made.file(role).model_dump(exclude={"sha256"}) for made in (lines, parquet))
        assert of_parquet == of_lines
    assert [problem.line for problem in parquet.file("training").problems] == [302, 303]
    excerpts = [(made.order.output / "excerpts.json").read_bytes() for made in (lines, parquet)]
    assert excerpts[0] == excerpts[1]


async def test_a_row_with_a_number_that_json_has_not_is_a_bad_row(bench: Bench) -> None:
    scored = [
        {**row, "score": float("nan") if number == 4 else 1.0} for number, row in enumerate(rows(20), 1)
    ]
    made = await bench.run(parquet_of(scored), spec={"policy": DatasetPolicy(max_bad_ratio=0.5)})
    (problem,) = made.file("training").problems
    assert (problem.line, problem.rule, problem.found) == (4, "json.invalid", "NaN, which is not JSON")
    assert set(made.examples()) == {*range(1, 21)} - {4}


WHOLE = parquet_of(rows(50))


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (
            WHOLE[:-100],
            "bad_parquet",
            f"the training file is Parquet that is cut off: its {len(WHOLE) - 100} bytes end with ",
        ),
        (
            WHOLE[:-4] + b"PARE",
            "bad_parquet",
            "the training file is encrypted Parquet, expected Parquet without",
        ),
        (
            parquet_of(pa.table({"text": ["a"], "image": [b"\x89PNG"]})),
            "bad_parquet",
            "the training file has column 'image' of type binary, expected text, numbers",
        ),
        (
            parquet_of(pa.table([["a"], ["b"]], names=["text", "text"])),
            "bad_parquet",
            "the training file has 2 columns 'text', expected one of each name",
        ),
        (parquet_of(pa.table({"text": pa.array([], pa.string())})), "empty", "the training file has no rows"),
        (
            parquet_of([{"question": "a"}]),
            "wrong_format",
            "no row of the training file has the fields of a known",
        ),
    ],
)
async def test_a_bad_file_is_refused_with_what_it_is(
    bench: Bench, content: bytes, code: str, message: str
) -> None:
    made = await bench.run(content)
    assert made.code == code
    assert made.report.message.startswith(message)


async def test_a_broken_page_in_the_middle_refuses_the_file_of_the_holdout(bench: Bench) -> None:
    holdout = bytearray(parquet_of(rows(3_000, seed=5), row_group_size=1_000, use_dictionary=False))
    middle = len(holdout) // 2
    holdout[middle : middle + 500] = b"\x07" * 500
    made = await bench.run(rows(30), holdout=bytes(holdout))
    assert made.code == "bad_parquet"
    assert made.report.message.startswith("the holdout file is Parquet that cannot be read behind row ")


async def test_a_page_that_needs_more_memory_than_there_is_ends_as_too_expensive(bench: Bench) -> None:
    """A small file whose one page has a gigabyte of zeros."""
    zeros = pa.array(["0" * (1 << 20)] * 1_000)
    options = {"use_dictionary": False, "data_page_size": 2 << 30, "write_batch_size": 1_000}
    content = parquet_of(pa.table({"text": zeros}), compression="zstd", **options)
    assert len(content) < 1 << 20
    order = bench.order(content, limits=GENEROUS.model_copy(update={"memory_bytes": 2 << 30}))
    answer = await carry_out(order)
    assert isinstance(answer, LimitExceeded)
    assert answer.resource == "memory"
    assert answer.message == f"validation needs more than {2 << 30} bytes of memory"


async def test_a_text_that_repeats_does_not_count_as_one(bench: Bench) -> None:
    """A column has its one text once; each row is checked, and is too large by itself."""
    text = "x" * 3_000
    content = parquet_of([{"text": text}] * 5_000)
    assert len(content) < 20_000
    made = await bench.run(content, spec={"policy": DatasetPolicy(max_row_bytes=2_000), "method": "cpt"})
    assert made.code == "wrong_format"
    assert made.file("training").rows == 5_000
    assert made.file("training").rejected_by_rule == {"json.too_large": 5_000}
