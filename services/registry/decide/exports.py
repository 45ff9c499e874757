"""Which exports there can be, what they need, and whether their files are near enough to the trained model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from schemas.exports import (
    DTYPE_BYTES,
    GGUF_FAMILIES,
    ExportActivity,
    ExportedFile,
    ExportFormat,
    ParityReport,
    Quantization,
    estimated_bytes,
    export_id,
)
from schemas.model import (
    DeleteExport,
    ExportModel,
    ModelExportDeleted,
    ModelExported,
    ModelExportFailed,
    ModelExportProgressed,
    ModelExportStarted,
)
from services.registry.model import BaseFacts, Distances, Export, ExportState, Version
from shared.errors import Refused

GIB = 1024**3
LIBRARY_BYTES = 3 * GIB // 2
"""Memory of torch and transformers, and of the tokens and logits of one text."""
BYTES_IN_MEMORY: Mapping[ExportFormat, float] = {"safetensors": 4.4, "gguf": 5.0}
"""Memory by parameter while one model is asked in float32; of a GGUF file the tensors are there before the model."""
SAME_LOGITS_TOKENS = 3_000
"""Positions of the texts that both are asked, at most."""

ExportEvent = ModelExportStarted | ModelExported | ModelExportFailed | ModelExportDeleted


@dataclass(frozen=True)
class Limit:
    """What passes. KL divergences are means over tokens, in nats."""

    kl: float
    rounding_kl: float
    """Divergence that rounding alone may make: below it nothing is compared with what training changed."""
    equal_next_tokens: float


LIMITS: Mapping[str, Limit] = {
    "safetensors": Limit(kl=1e-3, rounding_kl=1e-4, equal_next_tokens=0.95),
    "f16": Limit(kl=1e-3, rounding_kl=1e-4, equal_next_tokens=0.95),
    "q8_0": Limit(kl=1e-2, rounding_kl=2e-3, equal_next_tokens=0.9),
    "q4_0": Limit(kl=0.2, rounding_kl=0.2, equal_next_tokens=0.5),
}
"""By the type of the matrices; safetensors have the base model's, in which a merged weight is rounded once."""


@dataclass(frozen=True)
class ExportDecision:
    export: Export
    event: ExportEvent
    starts: bool = False
    """Whether its task begins."""


def start(version: Version, command: ExportModel, known: Export | None, base: BaseFacts) -> ExportDecision:
    """Begin an export, or answer with the one that there is: a failed one begins again. Raises Refused."""
    quantization = _quantization(command)
    if known is not None and known.state is ExportState.DELETING:
        message = f"{known.export_id} is being deleted: ask again when it is"
        raise Refused("export_deleting", message, param="format")
    if known is not None and known.state is not ExportState.FAILED:
        return ExportDecision(known, fact_of(version, known))
    if command.format == "gguf" and base.family is not None and base.family not in GGUF_FAMILIES:
        message = (
            f"format: family {base.family} of {version.base_model} cannot be written as GGUF,"
            f" {', '.join(GGUF_FAMILIES)} can; safetensors work for every family"
        )
        raise Refused("format_not_available", message, param="format")
    export = Export(
        export_id=export_id(version.model_id, command.format, quantization),
        model_id=version.model_id,
        tenant=version.tenant,
        format=command.format,
        quantization=quantization,
        state=ExportState.RUNNING,
        estimated_bytes=estimated_bytes(base.num_parameters, base.weights_dtype, quantization),
    )
    return ExportDecision(export, fact_of(version, export), starts=True)


def _quantization(command: ExportModel) -> Quantization | None:
    if command.format == "gguf":
        return command.quantization or "f16"
    if command.quantization is not None:
        message = f"quantization: found {command.quantization}, expected none: safetensors keep the base model's type"
        raise Refused("invalid_value", message, param="quantization")
    return None


def named(command: ExportModel) -> str:
    """Return the id of the export that a command is about. Raises Refused."""
    return export_id(command.model_id, command.format, _quantization(command))


def delete(version: Version, command: DeleteExport, known: Export | None) -> Export:
    """Raises Refused where the version has no such export, or it is under way."""
    if known is None or known.model_id != version.model_id:
        message = f"model version {version.model_id} has no export {command.export_id!r}"
        raise Refused("unknown_export", message, param="export_id")
    if known.state is ExportState.RUNNING:
        raise Refused("export_running", f"{known.export_id} is under way: delete it when it has ended")
    return replace(known, state=ExportState.DELETING)


def needed_memory(base: BaseFacts, file_format: ExportFormat) -> int:
    """Return the bytes of memory that an export needs: of the trained model and the files, one is there at a time."""
    return int(base.num_parameters * BYTES_IN_MEMORY[file_format]) + LIBRARY_BYTES


def needed_disk(base: BaseFacts, kind: str, estimated: int) -> int:
    """Return the bytes of the scratch folder that an export needs: what is fetched, the files, and the logits."""
    fetched = DTYPE_BYTES.get(base.weights_dtype or "", 4) + (4 if kind == "full" else 0)
    return base.num_parameters * fetched + estimated + SAME_LOGITS_TOKENS * (base.vocab_size or 0) * 4


def why_no_room(
    *, needed_bytes: int, available_bytes: int, needed_disk_bytes: int, available_disk_bytes: int
) -> str:
    """Return why the registry's machine cannot do it, or an empty text."""
    if needed_bytes > available_bytes:
        return (
            f"memory: comparing the files with the trained model needs {needed_bytes / GIB:.1f} GiB,"
            f" the registry's machine has {available_bytes / GIB:.1f} GiB"
        )
    if needed_disk_bytes > available_disk_bytes:
        return (
            f"disk: the base model, the files and the logits need {needed_disk_bytes / GIB:.1f} GiB,"
            f" the registry's scratch folder has {available_disk_bytes / GIB:.1f} GiB"
        )
    return ""


def judge(distances: Distances, file_format: ExportFormat, quantization: Quantization | None) -> ParityReport:
    """Compare the distances with what the format allows.

    Beyond rounding, the files must also be at least twice as near to the trained model as the base model is, so that
    an adapter that was left out fails, however little it has learned.
    """
    limit = LIMITS[quantization or file_format]
    kl_limit = limit.kl
    if distances.training_kl is not None:
        kl_limit = max(limit.rounding_kl, min(limit.kl, distances.training_kl / 2))
    is_near = distances.mean_kl <= kl_limit and distances.equal_next_tokens >= limit.equal_next_tokens
    return ParityReport(
        **distances.model_dump(exclude={"is_finite"}),
        kl_limit=kl_limit,
        equal_limit=limit.equal_next_tokens,
        passed=distances.is_finite and is_near,
    )


def ready(
    version: Version, export: Export, files: tuple[ExportedFile, ...], parity: ParityReport
) -> ExportDecision:
    done = replace(export, state=ExportState.READY, files=files, parity=parity, code="", message="")
    return ExportDecision(done, fact_of(version, done))


def failed(
    version: Version, export: Export, *, code: str, message: str, parity: ParityReport | None = None
) -> ExportDecision:
    ended = replace(export, state=ExportState.FAILED, code=code, message=message, parity=parity)
    return ExportDecision(ended, fact_of(version, ended))


def why_not_near(parity: ParityReport) -> str:
    return (
        f"the files are too far from the trained model: mean divergence {parity.mean_kl:.2g} nats of at most"
        f" {parity.kl_limit:.2g}, {parity.equal_next_tokens:.1%} equal next tokens of at least"
        f" {parity.equal_limit:.1%}, over {parity.num_tokens:,} tokens"
    )


def fact_of(version: Version, export: Export) -> ExportEvent:
    """Return the fact that says what the export's state is."""
    about = _about(version, export)
    match export.state:
        case ExportState.READY:
            assert export.parity is not None, "what is ready was compared"
            return ModelExported(
                **about, files=export.files, size_bytes=export.size_bytes, parity=export.parity
            )
        case ExportState.FAILED:
            return ModelExportFailed(**about, code=export.code, message=export.message, parity=export.parity)
        case ExportState.DELETING:
            return ModelExportDeleted(**about)
        case _:
            return ModelExportStarted(**about, estimated_bytes=export.estimated_bytes)


def progressed(
    version: Version, export: Export, activity: ExportActivity, done: int, total: int, seconds: float
) -> ModelExportProgressed:
    """seconds: for how long it has been at this activity."""
    left = seconds * (total - done) / done if 0 < done < total and seconds > 0 else None
    return ModelExportProgressed(
        **_about(version, export), activity=activity, done=done, total=total, seconds_left=left
    )


def _about(version: Version, export: Export) -> dict[str, str | None]:
    return {
        "model_id": version.model_id,
        "tenant": version.tenant,
        "job_id": version.job_id,
        "digest": version.digest,
        "export_id": export.export_id,
        "format": export.format,
        "quantization": export.quantization,
    }
