"""The pipeline's filters without tokenizer and process: what becomes of each row of a file."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.base import FileRef
from schemas.specification import DatasetPolicy, DatasetSpec
from services.ingest.pipeline.contamination import read_source
from services.ingest.pipeline.counts import FileCounts
from services.ingest.pipeline.duplicates import DuplicateIndex, PromptSpool
from services.ingest.pipeline.examine import Examiner
from services.ingest.pipeline.files import format_of_file
from services.ingest.pipeline.order import Limits, WorkOrder
from services.ingest.pipeline.screen import RowFilter
from services.ingest.pipeline.survey import survey_of
from services.ingest.pipeline.verdict import DatasetVerdict
from tests.builders import a_sha

Row = dict[str, Any]


@dataclass(frozen=True)
class Screened:
    kept: frozenset[int]
    """1-based lines of the training file."""
    counts: FileCounts
    verdict: DatasetVerdict

    @property
    def dropped(self) -> int:
        return self.counts.dropped.total()

    @property
    def contaminated_lines(self) -> frozenset[int]:
        """Where the policy keeps what is contaminated."""
        return frozenset(self.counts.kept_leaks)


def screen(
    training: Sequence[Row],
    *,
    holdout: Sequence[Row] | None = None,
    sources: dict[str, Sequence[Row]] | None = None,
    workers: int = 1,
    **policy: Any,
) -> Screened:
    """Pass the rows through the filters; `policy` as the fields of DatasetPolicy."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        order = _order(directory, training, holdout, DatasetPolicy(**policy), workers)
        registered = tuple(
            read_source(source, _file(directory / f"source-{source}", rows))
            for source, rows in (sources or {}).items()
        )
        return _screened(order, registered)


def _screened(order: WorkOrder, registered: Any) -> Screened:
    policy = order.spec.policy
    survey = survey_of(order, registered, lambda progress: None)
    spool = PromptSpool(order.scratch / "prompts")
    index = DuplicateIndex(spool, survey.common, similarity=policy.near_duplicate_similarity)
    passing, verdict = RowFilter(index, policy, order.workers, lambda progress: None), DatasetVerdict(policy)
    if order.holdout is not None:
        with verdict.of("holdout", "0" * 64) as counts:
            counts.format = format_of_file(order.holdout, "holdout", policy)
            examiner = Examiner("holdout", counts.format, policy, survey.common)
            list(passing.kept_rows(order.holdout, examiner, counts))
    with verdict.of("training", "0" * 64) as counts:
        counts.format = format_of_file(order.training, "training", policy)
        examiner = Examiner("training", counts.format, policy, survey.common, sources=survey.sources)
        kept = frozenset(row.line for row in passing.kept_rows(order.training, examiner, counts))
    spool.close()
    return Screened(kept, counts, verdict)


def _order(
    directory: Path,
    training: Sequence[Row],
    holdout: Sequence[Row] | None,
    policy: DatasetPolicy,
    workers: int,
) -> WorkOrder:
    ref = FileRef(file_id="file", sha256=a_sha("file"), size_bytes=1)
    return WorkOrder(
        version=a_sha("version"),
        tenant="acme",
        spec=DatasetSpec(base_model="tiny", base_sha=a_sha("tiny"), training_file=ref, policy=policy),
        template_sha256=a_sha("template"),
        context_tokens=4096,
        tokenizer=directory,
        training=_file(directory / "training", training),
        holdout=None if holdout is None else _file(directory / "holdout", holdout),
        output=directory,
        scratch=directory,
        limits=Limits(memory_bytes=1 << 32, cpu_seconds=600, file_bytes=1 << 32),
        workers=workers,
    )


def _file(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path
