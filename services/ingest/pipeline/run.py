"""One dataset from its files to its version: survey, holdout, validation, training, safety mix, outcome."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from schemas.compatibility import holdout_formats
from schemas.dataset import FileRole
from schemas.excerpts import PackingExcerpt
from schemas.specification import FORMATS_OF_METHOD, DatasetFormat, Method
from services.ingest.pipeline import outcome
from services.ingest.pipeline.answers import count_long_answers
from services.ingest.pipeline.contamination import Source, read_source
from services.ingest.pipeline.counts import FileCounts
from services.ingest.pipeline.duplicates import DuplicateIndex, PromptSpool
from services.ingest.pipeline.examine import Accepted, Examiner
from services.ingest.pipeline.excerpts import excerpts_of
from services.ingest.pipeline.figures import SamplePicker
from services.ingest.pipeline.files import HOLDOUT, format_of_file
from services.ingest.pipeline.order import READY, Finished, Progress, WorkOrder
from services.ingest.pipeline.packing_figures import packing_excerpt
from services.ingest.pipeline.parts import PartWriter, TokenSpool
from services.ingest.pipeline.rules import FileRefused
from services.ingest.pipeline.screen import RowFilter
from services.ingest.pipeline.survey import survey_of
from services.ingest.pipeline.tokens import (
    Checker,
    Encoder,
    load_tokenizer,
    template_sha256,
    training_template,
)
from services.ingest.pipeline.verdict import DatasetVerdict
from shared.chat.loading import end_tokens


def validate(order: WorkOrder, send: Callable[[Progress], None]) -> Finished:
    """Write `report.json`, `excerpts.json` where rows were looked at, and if every file is accepted the parts and
    `manifest.json`, into order.output."""
    verdict = DatasetVerdict(order.spec.policy)
    try:
        files = Files(order, verdict, send)
    except FileRefused as refusal:
        verdict.refuse("dataset", refusal)
        return outcome.write(order, verdict, outcome.PipelineResult())
    result = files.make()
    excerpts = excerpts_of(order, verdict, files.sources, result.packing)
    return outcome.write(order, verdict, result, excerpts)


class Files:
    """The files of one order, each passed through once."""

    def __init__(self, order: WorkOrder, verdict: DatasetVerdict, send: Callable[[Progress], None]) -> None:
        self._order = order
        self._spec = order.spec
        self._policy = order.spec.policy
        self._verdict = verdict
        self._tokenizer = load_tokenizer(order.tokenizer)
        self._training_template = training_template(order.tokenizer)
        self._ends = end_tokens(order.tokenizer, self._tokenizer)
        _require_template(order, template_sha256(self._tokenizer))
        registered = tuple(read_source(source.name, source.path) for source in order.sources)
        self._survey = survey_of(order, registered, send)
        self._long_answers = 0
        self._prompts = PromptSpool(order.scratch / "prompts")
        index = DuplicateIndex(
            self._prompts, self._survey.common, similarity=self._policy.near_duplicate_similarity
        )
        self._row_filter = RowFilter(index, self._policy, order.workers, send)

    @property
    def sources(self) -> tuple[Source, ...]:
        return self._survey.sources

    def make(self) -> outcome.PipelineResult:
        # The holdout first, then validation: a training row that repeats one of theirs is the one to go.
        self._screen_holdout()
        validation = self._make_validation()
        writer, samples = self._part_writer("training"), SamplePicker()
        self._add_training(writer, samples)
        safety_lines = self._add_safety_mix(writer)
        self._prompts.close()
        training = writer.close()
        return outcome.PipelineResult(
            training=training,
            validation=validation.close(),
            validation_rows=validation.totals.rows,
            totals=writer.totals,
            lengths=writer.lengths,
            safety_lines=safety_lines,
            long_answers=self._long_answers,
            samples=samples.samples(self._tokenizer),
            packing=self._packing(writer),
            source_grams={source.name: len(source.grams) for source in self._survey.sources},
        )

    def _screen_holdout(self) -> None:
        if self._order.holdout is None or self._spec.holdout is None:
            return
        with self._verdict.of("holdout", self._spec.holdout.sha256) as counts:
            path = self._order.holdout
            counts.format = format_of_file(path, HOLDOUT, self._policy)
            _require_format(counts, holdout_formats(self._spec.method), "the gate asks")
            check = Checker(self._tokenizer, training_template=self._training_template, is_holdout=True)
            examiner = Examiner(counts.role, counts.format, self._policy, self._survey.common, check)
            for _ in self._row_filter.kept_rows(path, examiner, counts):
                pass
            if self._order.answer_tokens is not None and counts.format is not DatasetFormat.TEXT:
                self._long_answers = count_long_answers(
                    path,
                    expected=counts.format,
                    policy=self._policy,
                    tokenizer=self._tokenizer,
                    budget=self._order.answer_tokens,
                )

    def _make_validation(self) -> PartWriter:
        writer = self._part_writer("validation")
        if self._order.validation is not None and self._spec.validation_file is not None:
            with self._verdict.of("validation", self._spec.validation_file.sha256) as counts:
                for row in self._rows(counts, self._order.validation, self._policy.format):
                    _add(writer, row.line, row)
        return writer

    def _add_training(self, writer: PartWriter, samples: SamplePicker) -> None:
        with self._verdict.of("training", self._spec.training_file.sha256) as counts:
            for row in self._rows(counts, self._order.training, self._policy.format):
                samples.offer(row)
                _add(writer, row.line, row)

    def _add_safety_mix(self, writer: PartWriter) -> frozenset[int]:
        """Add rows of the mix up to its share of the training rows; which ones follows from their digests.

        Returns: their lines.
        """
        mix = self._spec.safety_mix
        if self._order.safety_mix is None or mix is None:
            return frozenset()
        spool = TokenSpool(self._order.scratch, "safety_mix")
        digests: list[bytes] = []
        with self._verdict.of("safety_mix", mix.file.sha256) as counts:
            for row in self._rows(counts, self._order.safety_mix, "auto"):
                if row.encoded is not None:
                    spool.add(row.line, row.encoded)
                    digests.append(row.digest)
        ordered = sorted(range(len(digests)), key=digests.__getitem__)
        if self._spec.method is Method.CPT:
            most_tokens = round(mix.share * writer.totals.tokens)
            chosen = within(ordered, np.diff(np.asarray(spool.offsets)), most_tokens)
            if ordered and not chosen:
                self._verdict.refuse("safety_mix", _too_long(most_tokens))
        else:
            chosen = ordered[: round(mix.share * writer.totals.rows)]
        chosen.sort()
        for index in chosen:
            writer.add(-spool.lines[index], spool.get(index))
        spool.close()
        return frozenset(spool.lines[index] for index in chosen)

    def _packing(self, writer: PartWriter) -> PackingExcerpt | None:
        counts = self._verdict.counts("training")
        if counts is None or not writer.totals.windows or self._verdict.code != READY:
            return None
        return packing_excerpt(
            self._order,
            writer,
            left_out=counts.rules["tokens.over_length"],
            is_text=counts.format is DatasetFormat.TEXT,
        )

    def _rows(self, counts: FileCounts, path: Path, asked: DatasetFormat | str) -> Iterator[Accepted]:
        file_format = (
            format_of_file(path, counts.role, self._policy) if asked == "auto" else DatasetFormat(asked)
        )
        counts.format = file_format
        encoder = self._encoder(file_format, counts.role)
        examiner = Examiner(
            counts.role,
            file_format,
            self._policy,
            self._survey.common,
            Checker(self._tokenizer, training_template=self._training_template),
            self._survey.sources,
            encoder,
        )
        return self._row_filter.kept_rows(path, examiner, counts)

    def _encoder(self, file_format: DatasetFormat | None, role: FileRole) -> Encoder | None:
        """Return the encoder of a file's rows; None, with the refusal noted, where such rows cannot be tokenised.
        They are still checked."""
        method = self._spec.method
        if file_format is None:
            return None
        try:
            if file_format not in FORMATS_OF_METHOD[method]:
                raise _wrong_format(
                    role, file_format, f"method {method} trains on", FORMATS_OF_METHOD[method]
                )
            return Encoder(
                self._tokenizer,
                expected=file_format,
                limit=self._order.max_seq_length,
                truncation=self._policy.truncation,
                ends=self._ends,
                training_template=self._training_template,
            )
        except FileRefused as refusal:
            self._verdict.refuse(role, refusal)
            return None

    def _part_writer(self, role: FileRole) -> PartWriter:
        spool = partial(TokenSpool, self._order.scratch, role)
        return PartWriter(self._order.output, spool, max_seq_length=self._order.max_seq_length)


def within(order: Sequence[int], lengths: npt.NDArray[np.int64], most_tokens: int) -> list[int]:
    """Choose rows, in this order, that have at most so many tokens together: one that is too long is passed over."""
    chosen, left = [], most_tokens
    for row in order:
        if lengths[row] <= left:
            chosen.append(row)
            left -= int(lengths[row])
    return chosen


def _too_long(most_tokens: int) -> FileRefused:
    message = f"each text has more than {most_tokens} tokens, which is its share of the training tokens"
    return FileRefused("safety_mix.too_long", f"{message}: raise safety_mix.share, or give shorter texts")


def _add(writer: PartWriter, line: int, row: Accepted) -> None:
    if row.encoded is not None:
        writer.add(line, row.encoded)


def _require_template(order: WorkOrder, template_sha256: str) -> None:
    if template_sha256 != order.template_sha256:
        raise FileRefused(
            "template.changed",
            f"the chat template has sha256 {template_sha256}, "
            f"registered with the base model: {order.template_sha256}",
        )


def _require_format(counts: FileCounts, allowed: frozenset[DatasetFormat], whose: str) -> None:
    if counts.format is not None and counts.format not in allowed:
        raise _wrong_format(counts.role, counts.format, whose, allowed)


def _wrong_format(
    role: str, file_format: DatasetFormat, whose: str, allowed: frozenset[DatasetFormat]
) -> FileRefused:
    return FileRefused(
        "wrong_format", f"{whose} {' or '.join(sorted(allowed))} rows, the {role} file has {file_format} rows"
    )
