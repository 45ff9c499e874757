"""What the export process is asked to do, and what it reports."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from schemas.base import Bytes, Count, Value
from schemas.exports import ExportFormat, Quantization
from services.registry.model import Distances

WRITTEN = "export"
"""Folder beside the order that gets the files."""


class ExportOrder(Value):
    base: Path
    """Folder of the base model's files."""
    model: Path
    """Folder of what was trained of it."""
    kind: Literal["adapter", "full"]
    rank: Count
    """LoRA rank; 0 for a full model."""
    format: ExportFormat
    quantization: Quantization | None
    name: str
    """Name of the version, for the metadata of a GGUF file."""
    memory_bytes: Bytes
    """Memory that the process may take for itself."""


class Worked(Value):
    event: Literal["worked"] = "worked"
    activity: Literal["writing", "comparing"]
    done: Count
    """Bytes while it writes, sequences while it compares."""
    total: Count


class Impossible(Value):
    """The version cannot be written in this format; another try would end alike."""

    event: Literal["impossible"] = "impossible"
    code: Literal["not_exportable", "out_of_memory", "bad_model"]
    message: str


class Compared(Value):
    """The files are written, and this far from the model that was trained."""

    event: Literal["compared"] = "compared"
    distances: Distances


ExportReport = Annotated[Worked | Impossible | Compared, Field(discriminator="event")]
REPORT: TypeAdapter[ExportReport] = TypeAdapter(ExportReport)
