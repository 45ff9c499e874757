"""The report and the manifest of a dataset, written as files with the same bytes for the same input."""

import hashlib
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from schemas.artifacts import DatasetCounts, DatasetManifest, FileEntry, files_of
from schemas.base import Value
from schemas.excerpts import DatasetExcerpts, PackingExcerpt
from schemas.layout import EXCERPTS, MANIFEST
from schemas.report import DatasetReport, Sample, SourceReport
from schemas.specification import DatasetFormat
from services.ingest.pipeline.figures import length_histogram, packing_report
from services.ingest.pipeline.order import READY, REPORT, Finished, SourceFile, WorkOrder
from services.ingest.pipeline.parts import PartTotals
from services.ingest.pipeline.rules import RULES_VERSION
from services.ingest.pipeline.verdict import DatasetVerdict

HOLDOUT_ITEMS = 50
"""Number of holdout rows below which the gate's check `holdout` can never pass."""


@dataclass(frozen=True)
class PipelineResult:
    """What passed through all files."""

    training: tuple[FileEntry, ...] = ()
    validation: tuple[FileEntry, ...] = ()
    validation_rows: int = 0
    totals: PartTotals = field(default_factory=PartTotals)
    lengths: "array[int]" = field(default_factory=lambda: array("i"))
    safety_lines: frozenset[int] = frozenset()
    """Lines of the safety mix that are trained on."""
    long_answers: int = 0
    samples: tuple[Sample, ...] = ()
    packing: PackingExcerpt | None = None
    source_grams: dict[str, int] = field(default_factory=dict)


def write(
    order: WorkOrder,
    verdict: DatasetVerdict,
    result: PipelineResult,
    excerpts: DatasetExcerpts | None = None,
) -> Finished:
    report = make_report(order, verdict, result)
    if excerpts is not None:
        _write(order.output, EXCERPTS, excerpts)
    entry = _write(order.output, REPORT, report)
    if report.code == READY:
        _write(order.output, MANIFEST, make_manifest(order, verdict, result, entry))
    return Finished(code=report.code, message=report.message)


def make_report(order: WorkOrder, verdict: DatasetVerdict, result: PipelineResult) -> DatasetReport:
    is_ready = verdict.code == READY
    mix = order.spec.safety_mix
    return DatasetReport(
        version=order.version,
        tenant=order.tenant,
        rules_version=RULES_VERSION,
        base_sha=order.spec.base_sha,
        template_sha256=order.template_sha256,
        method=order.spec.method,
        policy=order.spec.policy,
        max_seq_length=order.max_seq_length,
        code=verdict.code,
        message=verdict.message,
        warnings=tuple(_warnings(verdict)),
        files=tuple(counts.report() for counts in verdict.files),
        sources=_sources(order, verdict, result),
        safety_share=mix.share if mix else 0.0,
        safety_rows=len(result.safety_lines),
        lengths=length_histogram(result.lengths) if is_ready else None,
        packing=packing_report(result.totals, order.max_seq_length) if is_ready else None,
        samples=result.samples,
    )


def make_manifest(
    order: WorkOrder, verdict: DatasetVerdict, result: PipelineResult, report: FileEntry
) -> DatasetManifest:
    training, holdout = verdict.counts("training"), verdict.counts("holdout")
    assert training is not None, "a ready dataset has a training file"
    assert training.format is not None, "a ready file has a format"
    return DatasetManifest(
        version=order.version,
        tenant=order.tenant,
        base_sha=order.spec.base_sha,
        template_sha256=order.template_sha256,
        format=training.format,
        method=order.spec.method,
        max_seq_length=order.max_seq_length,
        counts=DatasetCounts(
            rows=result.totals.rows,
            windows=result.totals.windows,
            tokens=result.totals.tokens,
            loss_tokens=result.totals.loss_tokens,
            validation_rows=result.validation_rows,
            rejected_rows=training.rejected,
            exact_duplicates=training.exact,
            near_duplicates=training.near,
            contaminated_rows=training.contaminated,
            contaminated_by_source=dict(sorted(training.contaminated_rows.items())),
            training_file_rows=training.rows,
            safety_rows=len(result.safety_lines),
            kept_leaks=_kept_leaks(verdict, result),
            holdout_rows=holdout.kept if holdout else None,
            holdout_texts=holdout.kept if holdout and holdout.format is DatasetFormat.TEXT else 0,
            long_answers=result.long_answers,
            answer_tokens=order.answer_tokens if holdout else None,
        ),
        training=result.training,
        validation=result.validation,
        report=report,
        rules_version=RULES_VERSION,
        files=files_of(order.spec),
    )


def _kept_leaks(verdict: DatasetVerdict, result: PipelineResult) -> dict[str, int]:
    """Rows that are trained on although they give away an item of a source, by source."""
    leaks: Counter[str] = Counter()
    for counts in verdict.files:
        for line, names in counts.kept_leaks.items():
            if counts.role == "training" or (counts.role == "safety_mix" and line in result.safety_lines):
                leaks.update(names)
    return dict(sorted(leaks.items()))


def _sources(order: WorkOrder, verdict: DatasetVerdict, result: PipelineResult) -> tuple[SourceReport, ...]:
    overlaps: Counter[str] = Counter()
    contaminated: Counter[str] = Counter()
    for counts in verdict.files:
        overlaps += counts.overlap_rows
        contaminated += counts.contaminated_rows
    files = list(order.sources)
    if order.holdout and order.spec.holdout:
        digest = order.spec.holdout.sha256
        files.append(SourceFile(name="holdout", kind="holdout", digest=digest, path=order.holdout))
    return tuple(
        SourceReport(
            name=file.name,
            kind=file.kind,
            digest=file.digest,
            grams=result.source_grams.get(file.name, 0),
            rows_with_overlap=overlaps[file.name],
            contaminated_rows=contaminated[file.name],
        )
        for file in files
    )


def _warnings(verdict: DatasetVerdict) -> list[str]:
    warnings = []
    for counts in verdict.files:
        if counts.role == "holdout" and counts.kept < HOLDOUT_ITEMS:
            warnings.append(f"the holdout has {counts.kept} items, the gate needs at least {HOLDOUT_ITEMS}")
        if counts.ignored:
            warnings.append(
                f"fields of the {counts.role} file that are not read: {', '.join(sorted(counts.ignored))}"
            )
        if counts.not_fully_compared:
            warnings.append(
                f"{counts.not_fully_compared} rows of the {counts.role} file have so many similar rows "
                "that only the first were compared: near duplicates may remain"
            )
    return warnings


def _write(directory: Path, name: str, content: Value) -> FileEntry:
    encoded = f"{content.model_dump_json(indent=1)}\n".encode()
    (directory / name).write_bytes(encoded)
    return FileEntry(path=name, size_bytes=len(encoded), sha256=hashlib.sha256(encoded).hexdigest())
