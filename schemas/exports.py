"""What is exported of a model version: formats, files, and how near these come to the model that was trained."""

from collections.abc import Mapping
from typing import Literal

from schemas.base import Bytes, Count, Sha256, Share, Value

ExportFormat = Literal["safetensors", "gguf"]
Quantization = Literal["f16", "q8_0", "q4_0"]
ExportActivity = Literal["waiting", "fetching", "writing", "comparing", "storing"]


GGUF_FAMILIES = ("llama", "qwen2", "qwen3")
"""Families that are written as GGUF: those of which a test shows that what is read back answers alike."""
FILE_BYTES: Mapping[Quantization, float] = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""Size by parameter of a GGUF file."""
DTYPE_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
BESIDE_WEIGHTS_BYTES = 32 * 1024**2
"""Tokenizer, configuration and headers."""


def estimated_bytes(num_parameters: int, weights_dtype: str | None, quantization: Quantization | None) -> int:
    """Return the size of an export by estimate. weights_dtype: of the base model's files, where it is known."""
    by_parameter = FILE_BYTES[quantization] if quantization else DTYPE_BYTES.get(weights_dtype or "", 4)
    return int(num_parameters * by_parameter) + BESIDE_WEIGHTS_BYTES


def export_id(model_id: str, file_format: ExportFormat, quantization: Quantization | None) -> str:
    """Return the id of an export: a version has one of each format and quantization."""
    variant = file_format if quantization is None else f"{file_format}-{quantization}"
    return f"export-{model_id.removeprefix('mv-')}-{variant}"


class ParityReport(Value):
    """How near the files come to the model that was trained, on the same token sequences."""

    num_tokens: Count
    """Positions at which both were asked for the next token."""
    max_difference: float
    """Greatest absolute difference of two logits."""
    mean_difference: float
    """Mean absolute difference of the logits."""
    mean_kl: float
    """Mean Kullback-Leibler divergence of the files' next-token distribution from the trained model's, in nats."""
    max_kl: float
    """The same at the position where it is greatest."""
    training_kl: float | None
    """Mean divergence of the base model's from the trained model's: what training changed. None for full models."""
    equal_next_tokens: Share
    """Share of the positions at which both find the same next token most probable."""
    kl_limit: float
    """Greatest `mean_kl` that passes."""
    equal_limit: Share
    """Smallest `equal_next_tokens` that passes."""
    equal_token_ids: bool | None = None
    """Whether transformers makes the same token ids of the texts by a GGUF file's tokenizer; it splits texts as the
    family does, and not as the file says. None: the files have the base model's own tokenizer."""
    passed: bool
    """Whether `mean_kl` and `equal_next_tokens` are within their limits."""


class ExportedFile(Value):
    """A file of an export."""

    path: str
    """Name of the file within the export."""
    size_bytes: Bytes
    sha256: Sha256
