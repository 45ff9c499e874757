"""A validation from outside: inputs from S3, the child process under its limits, outputs to S3."""

import asyncio
import os
import shutil
import signal
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from schemas import layout
from schemas.artifacts import BaseModelManifest, DatasetManifest, FileEntry, files_of
from schemas.base import FileRef
from schemas.report import DatasetReport
from schemas.specification import DatasetSpec
from services.ingest.model import BaseModel, Ready, Rejection, Source
from services.ingest.pipeline.order import (
    CHILD_MESSAGE,
    READY,
    REPORT,
    ChildMessage,
    Finished,
    LimitExceeded,
    Limits,
    Progress,
    SourceFile,
    WorkOrder,
)
from services.ingest.settings import Settings
from shared import row_files
from shared.errors import CorruptObject, Rejected
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.processes.orders import write_order
from shared.processes.tail import last_lines
from shared.processes.workers import ERRORS, carry_out
from shared.storage.objects import ObjectStore, fetch_files, get_manifest, put_manifest, sha256_of

log = get_logger(__name__)

TOKENIZER_FILES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        layout.TRAINING_TEMPLATE,
        "vocab.json",
        "merges.txt",
        "tokenizer.model",
    }
)
SPARE_FILE_BYTES = 1 << 30
TEXT_BYTES_PER_BYTE = 100
"""Bytes of text that a byte of a Parquet file may stand for: it is compressed, and texts may repeat in each row."""
TAIL_LINES = 20
ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    **row_files.ENVIRONMENT,
}


class ChildDied(Exception):
    """The validating process ended without a verdict; the next try may have one."""


@dataclass(frozen=True)
class ValidationRequest:
    """All that a validation is made of."""

    version: str
    tenant: str
    spec: DatasetSpec
    base: BaseModel
    sources: tuple[Source, ...]
    answer_tokens: int | None = None


class Validator:
    def __init__(self, objects: ObjectStore, settings: Settings) -> None:
        self._objects = objects
        self._settings = settings

    async def clear_scratch(self) -> None:
        """Delete what a killed process left behind, which is of no use."""
        await asyncio.to_thread(_empty, self._settings.scratch_dir)

    async def validate(self, request: ValidationRequest) -> Ready | Rejection:
        """Validate a dataset. Raises Rejected if an input is missing or altered; ChildDied, StorageUnavailable:
        retry."""
        with tempfile.TemporaryDirectory(dir=self._settings.scratch_dir) as name:
            order = await self._fetch(request, Path(name))
            outcome = await run_child(order, Path(name), limit=self._settings.time_limit)
            if isinstance(outcome, LimitExceeded):
                return Rejection(code="too_expensive", message=outcome.message, is_final=False)
            return await self._store(request, order.output, outcome)

    async def delete(self, version: str) -> None:
        """Delete the manifest first: from then on the version does not exist, whatever is left of parts and
        features."""
        await self._objects.delete([layout.dataset(version)])
        failpoint("gc.marked")
        for prefix in (layout.dataset(version, ""), layout.features(version)):
            rest = await self._objects.list_objects(prefix)
            await self._objects.delete(head.key for head in rest)

    async def _fetch(self, request: ValidationRequest, directory: Path) -> WorkOrder:
        spec, base = request.spec, request.base
        for name in ("inputs", "output", "scratch", "tokenizer"):
            (directory / name).mkdir()
        inputs = directory / "inputs"
        await self._fetch_tokenizer(base, directory / "tokenizer")
        mix = spec.safety_mix.file if spec.safety_mix else None
        return WorkOrder(
            version=request.version,
            tenant=request.tenant,
            spec=spec,
            template_sha256=base.template_sha256,
            context_tokens=base.context_tokens,
            tokenizer=directory / "tokenizer",
            training=await self._fetch_blob(spec.training_file, inputs),
            validation=spec.validation_file and await self._fetch_blob(spec.validation_file, inputs),
            holdout=spec.holdout and await self._fetch_blob(spec.holdout, inputs),
            safety_mix=mix and await self._fetch_blob(mix, inputs),
            answer_tokens=request.answer_tokens,
            sources=tuple([await self._fetch_source(source, inputs) for source in request.sources]),
            output=directory / "output",
            scratch=directory / "scratch",
            limits=self._limits(inputs),
            workers=self._settings.workers,
        )

    async def _fetch_tokenizer(self, base: BaseModel, into: Path) -> None:
        key = layout.base_model(base.base_sha)
        manifest = await get_manifest(self._objects, key, BaseModelManifest, sha256=base.manifest_sha256)
        files = [file for file in manifest.files if file.path in TOKENIZER_FILES]
        await fetch_files(
            self._objects, lambda path: layout.base_model(base.base_sha, layout.file(path)), files, into
        )

    async def _fetch_source(self, source: Source, into: Path) -> SourceFile:
        path = await self._fetch_blob(source.file, into)
        return SourceFile(name=source.name, kind=source.kind, digest=source.digest, path=path)

    async def _fetch_blob(self, file: FileRef, into: Path) -> Path:
        path = into / file.sha256
        if path.exists():
            return path
        key = layout.blob(file.sha256)
        try:
            await self._objects.get_file(key, path, sha256=file.sha256, size_bytes=file.size_bytes)
        except KeyError:
            raise Rejected(f"file {file.file_id} is not in the store: {key} does not exist") from None
        except CorruptObject as error:
            raise Rejected(f"file {file.file_id} is not what was uploaded: {error}") from error
        return path

    def _limits(self, inputs: Path) -> Limits:
        text_bytes = sum(_text_bytes(path) for path in inputs.iterdir())
        seconds = self._settings.time_limit.total_seconds()
        return Limits(
            memory_bytes=self._settings.memory_bytes,
            cpu_seconds=int(seconds * max(1, os.cpu_count() or 1)),
            # A token takes 4 bytes and stands for one byte of text at least.
            file_bytes=5 * text_bytes + SPARE_FILE_BYTES,
        )

    async def _store(self, request: ValidationRequest, output: Path, finished: Finished) -> Ready | Rejection:
        report_key = layout.dataset(request.version, REPORT)
        report = output / REPORT
        excerpts = output / layout.EXCERPTS
        if excerpts.exists():
            key = layout.dataset(request.version, layout.EXCERPTS)
            await self._objects.put_file(key, excerpts, sha256=sha256_of(excerpts))
        if finished.code != READY:
            await self._objects.put_file(report_key, report, sha256=sha256_of(report))
            dataset_report = DatasetReport.model_validate_json(report.read_bytes())
            return Rejection(
                code=finished.code,
                message=finished.message,
                problems=dataset_report.first_problems(),
                report_key=report_key,
            )
        manifest = DatasetManifest.model_validate_json((output / layout.MANIFEST).read_bytes())
        for entry in (*manifest.training, *manifest.validation, manifest.report):
            await self._put(request.version, output, entry)
        failpoint("s3.parts.done")
        digest = await put_manifest(self._objects, layout.dataset(request.version), manifest)
        return Ready(
            manifest_sha256=digest,
            template_sha256=manifest.template_sha256,
            counts=manifest.counts,
            files=files_of(request.spec),
        )

    async def _put(self, version: str, output: Path, entry: FileEntry) -> None:
        key = layout.dataset(version, entry.path)
        await self._objects.put_file(key, output / entry.path, sha256=entry.sha256)


async def run_child(order: WorkOrder, work_dir: Path, *, limit: timedelta) -> Finished | LimitExceeded:
    """Run the pipeline on an order, whose outputs are within `work_dir`. Raises ChildDied."""
    outcomes: list[Finished | LimitExceeded] = []

    def take(message: ChildMessage) -> None:
        if isinstance(message, Progress):
            log.info("rows validated", part=message.part, rows=message.rows, kept=message.kept)
        else:
            outcomes.append(message)

    try:
        code = await carry_out(
            "services.ingest.pipeline",
            write_order(work_dir, order),
            work_dir=work_dir,
            inputs=order.inputs,
            messages=CHILD_MESSAGE,
            on_message=take,
            environment=ENVIRONMENT,
            limit=limit,
        )
    except TimeoutError:
        message = f"validation took more than {limit.total_seconds():.0f} seconds"
        return LimitExceeded(resource="time", message=message)
    return outcomes[-1] if outcomes else _silent_end(code, work_dir, order.limits)


def _silent_end(code: int, work_dir: Path, limits: Limits) -> LimitExceeded:
    if code == -signal.SIGXCPU:
        return LimitExceeded(resource="cpu", message="validation used more processor time than it may")
    if code == -signal.SIGABRT:
        message = f"validation needs more than {limits.memory_bytes} bytes of memory"
        return LimitExceeded(resource="memory", message=message)
    tail = "\n".join(last_lines(work_dir / ERRORS, TAIL_LINES))
    raise ChildDied(f"the validating process ended with code {code}: {tail}")


def _text_bytes(path: Path) -> int:
    return path.stat().st_size * (TEXT_BYTES_PER_BYTE if row_files.is_parquet(path) else 1)


def _empty(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        shutil.rmtree(path, ignore_errors=True)
