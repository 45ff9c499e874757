"""Formats of what lies in S3 and passes between services: manifests and the training arrays.

A manifest is written last and names size and sha256 of every file; an artifact without one does not exist.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from schemas.base import Attempt, BundleRef, Bytes, Count, JobId, Sha256, Step, TenantName, Value
from schemas.capabilities import BaseCapabilities
from schemas.exports import ExportedFile, ParityReport
from schemas.numbers import plural
from schemas.specification import DatasetFormat, DatasetSpec, Method, Weights, canonical_sha256


def _require_relative(path: str) -> str:
    if any(part in ("", ".", "..") for part in path.split("/")) or "\\" in path or "\0" in path:
        raise ValueError(f"{path!r} is no relative path with forward slashes and without . and ..")
    return path


class FileEntry(Value):
    path: Annotated[str, AfterValidator(_require_relative)]
    """Relative, forward slashes, no `.` or `..`."""
    size_bytes: Bytes
    sha256: Sha256


def files_digest(files: tuple[FileEntry, ...]) -> str:
    """Return the identity of a set of files: sha256 over sorted (path, size, sha256)."""
    return canonical_sha256(sorted((file.path, file.size_bytes, file.sha256) for file in files))


class BaseModelManifest(Value):
    """`base-models/<sha>/manifest.json`; sha = files_digest(files)."""

    name: str
    source: str
    """Where it came from: `directory` or `hub:<repository>@<commit>`."""
    files: tuple[FileEntry, ...]
    template_sha256: Sha256
    """sha256 of the chat template's text."""
    context_tokens: Count
    num_parameters: Count
    training_template_sha256: Sha256 | None = None
    """sha256 of the file that marks the answers in training; None: the model was registered without one."""
    capabilities: BaseCapabilities | None = None
    """Capabilities as first read when these files were registered; None where an older writer did not read them."""


class DatasetCounts(Value):
    """What a dataset version holds, and what became of the rows of its files."""

    rows: Count
    """Examples that are trained on, the safety mix included."""
    windows: Count
    """Packed sequences of the training file."""
    tokens: Count
    """Tokens of the rows that are kept. A text of several windows has a token twice where one ends."""
    loss_tokens: Count
    """Tokens that are trained on: what the assistant says, of a text every token but the first."""
    validation_rows: Count = 0
    """Rows of the validation file."""
    rejected_rows: Count = 0
    """Bad rows of the training file, as are the next three counts."""
    exact_duplicates: Count = 0
    """Rows equal to an earlier one."""
    near_duplicates: Count = 0
    """Rows with an earlier row's answers and nearly its prompt."""
    contaminated_rows: Count = 0
    """Rows that hold half or more of an item of a benchmark, suite or the holdout."""
    contaminated_by_source: dict[str, Count] = Field(default={})
    """Contaminated rows of the training file by source, `holdout` for the holdout; a row may count for several."""
    training_file_rows: Count = 0
    """Lines of the training file that are not blank."""
    safety_rows: Count = 0
    """Rows of the safety mix."""
    holdout_rows: Count | None = None
    """Items of the holdout; None where there is none, or where an older writer did not say."""
    holdout_texts: Count = 0
    """Items of the holdout that are texts, which have no answer that could be compared: all of them or none."""
    long_answers: Count = 0
    """Rows of the holdout whose reference answer is longer than `answer_tokens`."""
    answer_tokens: Count | None = None
    """Longest answer that the gate lets a model give; None where nobody had published it."""
    kept_leaks: dict[str, Count] = Field(default={})
    """Contaminated rows that an operator's policy `keep` leaves in, by source; `holdout` for the holdout."""

    @property
    def summary(self) -> str:
        """One sentence for people: rows kept of the training file, and the problems in it."""
        counts = [f"{self.rejected_rows:,} bad", plural(self.exact_duplicates, "exact duplicate")]
        counts += [plural(self.near_duplicates, "near duplicate"), f"{self.contaminated_rows:,} contaminated"]
        if self.contaminated_by_source:
            counts[-1] += f" by {_listed(self.contaminated_by_source)}"
        # Older writers did not count the file's rows.
        kept_of = f"{self.rows - self.safety_rows:,} of " if self.training_file_rows else ""
        leaks = f"; rows of the gate's own sources are trained on: {_listed(self.kept_leaks)}"
        mix = f"; {plural(self.safety_rows, 'row')} of the safety mix added" if self.safety_rows else ""
        rows = plural(self.training_file_rows or self.rows - self.safety_rows, "row")
        kept = f"kept {kept_of}{rows}: {', '.join(counts)}{mix}"
        return kept + (leaks if self.kept_leaks else "")


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


class DatasetFiles(Value):
    """sha256 of each file that a dataset was made of; None where there was none."""

    training: Sha256
    validation: Sha256 | None = None
    holdout: Sha256 | None = None
    safety_mix: Sha256 | None = None


def files_of(spec: DatasetSpec) -> DatasetFiles:
    return DatasetFiles(
        training=spec.training_file.sha256,
        validation=spec.validation_file.sha256 if spec.validation_file else None,
        holdout=spec.holdout.sha256 if spec.holdout else None,
        safety_mix=spec.safety_mix.file.sha256 if spec.safety_mix else None,
    )


CHOSEN, REJECTED = 1, 2
"""Values of `example_sides`."""


class DatasetManifest(Value):
    """`datasets/<version>/manifest.json`.

    Each part is a safetensors file with
      tokens          int32 [N]    all examples' token ids, one after another
      loss_mask       uint8 [N]    1 where the token is a target of the loss
      example_offsets int64 [E+1]  example e is tokens[example_offsets[e]:example_offsets[e+1]]
      example_lines   int64 [E]    1-based line in its source file; negative for the safety mix; a text that is longer
                                   than a window is several examples of one line
      window_offsets  int64 [W+1]  window w holds window_examples[window_offsets[w]:window_offsets[w+1]]
      window_examples int64 [E]    the packing plan, indices of examples in this part
    and, of preference rows alone,
      example_sides   uint8 [E]    1 where the example ends with the chosen answer, 2 with the rejected one; the two
                                   of a row follow each other in this order, in the part and in one window
    """

    version: Sha256
    tenant: TenantName
    base_sha: Sha256
    template_sha256: Sha256
    format: DatasetFormat
    method: Method
    max_seq_length: Count
    counts: DatasetCounts
    training: tuple[FileEntry, ...]
    validation: tuple[FileEntry, ...] = ()
    report: FileEntry
    rules_version: int
    files: DatasetFiles | None = None
    """sha256 of the files that it was made of; None where an older writer did not say."""


class ReferenceIdentity(Value):
    """All that log-probabilities of a dataset's answers by a model follow from, but for rounding."""

    base_sha: Sha256
    started_from: Sha256 | None = None
    """Identity, by content, of what an earlier job trained of the base model; None: the base model itself."""
    dataset_version: Sha256
    template_sha256: Sha256
    weights: Weights
    """Weights that are trained: where all of a model's are, the base is in float32 too."""
    precision: Literal["float32", "bfloat16"]
    """Type that products were computed in."""
    quantized_sha256: Sha256 | None = None
    """sha256 of the layers of a base in 4 bits. None: the base as it is."""


class ReferenceManifest(Value):
    """`features/<dataset version>/<key>/manifest.json`. Its file is a safetensors file with
    training    float32 [E]  log-probability of the answer of each example, in the order of the parts
    validation  float32 [V]  the same of the validation file
    and the identity in its metadata.
    """

    identity: ReferenceIdentity
    file: FileEntry


class BundleManifest(Value):
    """`checkpoints/<job>/<attempt>/<step>/manifest.json`. What a run needs to continue exactly.

    Parts: `model/*` (adapter_model.safetensors + adapter_config.json, or model.safetensors; a full model that several
    processes write is in a file of each, with model.safetensors.index.json), each tensor whole,
    `optimizer/*.safetensors` in slices, `state.json` (scheduler, sampler position, digest of consumed examples,
    expected next batch), `rng/rank-<r>.safetensors`.
    """

    job_id: JobId
    attempt: Attempt
    step: Step
    world_size: Count
    method: Method
    base_sha: Sha256
    dataset_version: Sha256
    config_hash: Sha256
    parts: tuple[FileEntry, ...]
    best: BundleRef | None = None
    """The best bundle so far, where the recipe asks for it and it is an earlier one."""

    @property
    def model_files(self) -> tuple[FileEntry, ...]:
        """The files that are the model itself, with paths as the model version has them."""
        return tuple(
            part.model_copy(update={"path": part.path.removeprefix("model/")})
            for part in self.parts
            if part.path.startswith("model/")
        )


class ModelManifest(Value):
    """`models/<digest>/manifest.json`; digest = files_digest(files): weights and configuration alone."""

    kind: Literal["adapter", "full"]
    files: tuple[FileEntry, ...]
    base_sha: Sha256
    source: BundleRef
    job_id: JobId


class ExportManifest(Value):
    """`models/exports/<export id>/manifest.json`. Each file is a part, named by its content."""

    digest: Sha256
    """Digest of the model version that was exported."""
    files: tuple[ExportedFile, ...]
    parity: ParityReport


class ResumeCertificate(Value):
    """What is equal between an attempt's begin and the checkpoint that it continues from.

    It is about the begin alone: whether later steps are those of the interrupted attempt, bit for bit, is up to the
    device too (`is_repeatable`).
    """

    exact: bool
    """Whether state and environment are equal."""
    step: Step
    """The step of the bundle that was resumed from."""
    reason: str
    """`equal` or what differed: expected and found."""
    state_exact: bool | None = None
    """Whether weights, moments and random numbers of every process, batches consumed and the next one are equal. None
    in older certificates, as are the next two."""
    environment_equal: bool | None = None
    """Whether libraries, training code, device, driver and threads are equal."""
    is_repeatable: bool | None = None
    """Whether the device gives the same bits for the same step each time. A GPU does not."""
    expected_batch_sha256: Sha256 | None = None
    found_batch_sha256: Sha256 | None = None
    expected_loss: float | None = None
    """Loss of the next batch, as the interrupted run computed it before it ended."""
    found_loss: float | None = None
    """Loss of the same batch after the resume."""
