"""A report on a dataset's rows with everything in it, as ingest would have written it."""

from typing import Any

from schemas.dataset import RowProblem
from schemas.excerpts import (
    ClusterExcerpt,
    DatasetExcerpts,
    Excerpt,
    Member,
    OverlapExcerpt,
    PackingExcerpt,
    PackingFigures,
    Run,
    WindowExcerpt,
)
from schemas.report import (
    Cluster,
    DatasetReport,
    DroppedGroup,
    Duplicate,
    FileReport,
    LengthHistogram,
    Overlap,
    PackingReport,
    Sample,
    Segment,
    SourceReport,
)
from schemas.specification import DatasetFormat, DatasetPolicy, Method
from tests.builders import a_sha

RULES = {"chat.role_order": ("two turns of the assistant", "add a turn of the user between them"),
         "row.too_long": ("5,012 tokens", "split it, or set policy.truncation")}  # fmt: skip


def a_file_report(*, num_problems: int = 60, hostile: str = "", **changes: Any) -> FileReport:
    """Of 1,000 rows; every other problem is of another rule."""
    names = [*RULES]
    problems = tuple(
        RowProblem(file="training", line=line, field=f"messages[{line}]", rule=names[line % 2],
                   found=f"{RULES[names[line % 2]][0]} {hostile}", fix=RULES[names[line % 2]][1])
        for line in range(1, num_problems + 1)
    )  # fmt: skip
    counts = {name: sum(problem.rule == name for problem in problems) for name in names}
    fields: dict[str, Any] = {
        "role": "training",
        "sha256": a_sha("training"),
        "format": DatasetFormat.CHAT,
        "rows": 1000,
        "blank_lines": 2,
        "has_bom": False,
        "kept_rows": 1000 - num_problems - 40 - 20,
        "rejected_rows": num_problems,
        "rejected_by_rule": {name: count for name, count in counts.items() if count},
        "problems": problems,
        "ignored_fields": {f"id{hostile}": 12},
        "exact_duplicates": 25,
        "near_duplicates": 15,
        "clusters": (
            Cluster(kept_file="training", kept_line=3, duplicates=(Duplicate(line=9, similarity=1.0),)),
            Cluster(
                kept_file="training",
                kept_line=4,
                duplicates=tuple(Duplicate(line=line, similarity=0.93) for line in range(100, 120)),
            ),
        ),
        "rows_not_fully_compared": 0,
        "dropped_rows": {"exact_duplicates": 25, "near_duplicates": 15, "contamination": 20},
        "dropped_groups": (DroppedGroup(filter="exact_duplicates", repeats="line 3", rows=25),),
        "contaminated_rows": 20,
        "holdout_duplicates": 0,
        "rows_with_overlap": 22,
        "overlaps": (
            Overlap(line=700, source="mmlu", item=12, share=0.2, is_contaminated=False),
            Overlap(line=701, source=f"holdout{hostile}", item=4, share=0.91, is_contaminated=True),
        ),
    }
    return FileReport(**fields | changes)


def a_report(*, hostile: str = "", file: FileReport | None = None, **changes: Any) -> DatasetReport:
    source = SourceReport(
        name="mmlu",
        kind="benchmark",
        digest=a_sha("mmlu"),
        grams=1000,
        rows_with_overlap=2,
        contaminated_rows=20,
    )
    segments = (
        Segment(text=f"<|user|>\nWhat is 7 times 7? {hostile}\n<|assistant|>\n", is_target=False),
        Segment(text=f"It is 49. {hostile}<|end|>", is_target=True),
    )
    lengths = LengthHistogram(
        edges=(0, 16, 32, 64, 128, 256, 512, 1024), rows=(3, 40, 210, 390, 180, 45, 12), minimum=9, median=88.0,
        p95=300.0, maximum=900, mean=104.2,
    )  # fmt: skip
    fields: dict[str, Any] = {
        "version": a_sha("version"),
        "tenant": "demo",
        "rules_version": 1,
        "base_sha": a_sha("base"),
        "template_sha256": a_sha("template"),
        "method": Method.LORA,
        "policy": DatasetPolicy(),
        "max_seq_length": 512,
        "code": "ready",
        "message": "",
        "warnings": (f"the template leaves out names {hostile}",),
        "files": (file or a_file_report(hostile=hostile),),
        "sources": (source,),
        "safety_share": 0.0,
        "safety_rows": 0,
        "lengths": lengths,
        "packing": PackingReport(
            windows=210, max_seq_length=512, tokens=91_000, fill_ratio=0.846, fewest_windows=178
        ),
        "samples": tuple(
            Sample(line=line, num_tokens=40, segments=segments, is_cut=line == 3) for line in (1, 2, 3)
        ),
    }
    return DatasetReport(**fields | changes)


def excerpts_of_rows(*, hostile: str = "", **changes: Any) -> DatasetExcerpts:
    """A near duplicate, an equal row, a benchmark's item, an item of the holdout, and windows of three rows each."""

    def member(line: int, similarity: float, text: str, **cuts: bool) -> Member:
        return Member(
            file="training", line=line, similarity=similarity, excerpt=Excerpt(runs=(Run(text=text),), **cuts)
        )

    question = f"user: What is 7 times 7? {hostile}\n\nassistant: It is 49."
    near = ClusterExcerpt(
        duplicates=20,
        members=(
            member(4, 1.0, question, is_cut_before=True),
            member(
                100, 0.93, question.replace("times", "multiplied by"), is_cut_before=True, is_cut_after=True
            ),
            member(101, 0.95, question.replace("What", "Tell me what"), is_cut_before=True),
        ),
    )
    equal = ClusterExcerpt(duplicates=1, members=(member(3, 1.0, question), member(9, 1.0, question)))
    shared = f"a train leaves the station at noon and drives for three hours to the sea {hostile}"
    row = Excerpt(
        runs=(Run(text="user: So: "), Run(text=shared, is_shared=True), Run(text="\n\nassistant: 180 km."))
    )
    item = Excerpt(runs=(Run(hidden_words=5), Run(text=shared, is_shared=True), Run(hidden_words=1)))
    overlap = OverlapExcerpt(
        file="training", line=702, source="mmlu", kind="benchmark", item=12, share=0.84, shared_words=15, longest_run=15,
        row=row, item_text=item,
    )  # fmt: skip
    own = overlap.model_copy(
        update={"line": 701, "source": f"holdout{hostile}", "kind": "holdout", "item_text": row}
    )
    windows = tuple(
        WindowExcerpt(index=9 * number, pieces=(300 - 4 * number, 100, 90), tokens=490 - 4 * number)
        for number in range(24)
    )
    chosen = PackingFigures(
        max_seq_length=512, rows=880, long_rows=12, pieces=880, tokens=91_000, windows=210, padding_ratio=0.154,
        unpacked_padding_ratio=0.798,
    )  # fmt: skip
    shorter = chosen.model_copy(
        update={"max_seq_length": 256, "long_rows": 57, "windows": 371, "padding_ratio": 0.042}
    )
    packing = PackingExcerpt(
        chosen=chosen, others=(shorter,), rows_of_others=880, windows=windows, windows_of_part=210
    )
    fields: dict[str, Any] = {
        "version": a_sha("version"),
        "tenant": "demo",
        "clusters": (near, equal),
        "overlaps": (overlap, own),
        "packing": packing,
    }
    return DatasetExcerpts(**fields | changes)
