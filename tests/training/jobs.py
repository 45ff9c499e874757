"""Small real jobs for the training child: a tiny base model, a packed dataset, orders, and ways to run them."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import psutil
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file

from schemas.artifacts import BundleManifest, DatasetCounts, DatasetManifest, FileEntry
from schemas.base import DeviceKind
from schemas.specification import FORMATS_OF_METHOD, CheckpointSpec, LoraSpec, Method, Recipe
from services.ingest.pipeline.formats import Example, Turn
from services.ingest.pipeline.parts import PartWriter, TokenSpool
from services.ingest.pipeline.tokens import Encoded, Encoder
from services.trainer_agent.protocol import (
    RENDEZVOUS,
    REPORTS,
    Report,
    Saved,
    Stepped,
    TrainingOrder,
    bundle_manifest,
    parse_reports,
)
from services.trainer_agent.training.bundle import sha256_of
from services.trainer_agent.training.child import run_child
from services.trainer_agent.training.device import on_ordered_device
from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.stop import StopRequest
from shared.ports import free_port
from shared.processes.orders import write_order
from tests.waiting import PATIENCE_SECONDS

BASE_SHA = "ba" * 32
VERSION = "da" * 32
CONFIG_HASH = "c0" * 32
WINDOW_TOKENS = 96
ONE_PROCESS = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"))
CHILD = (sys.executable, "-m", "services.trainer_agent.training.main")


Tokens = tuple[list[int], list[int]]
"""Token ids and loss mask of one example."""
T = TypeVar("T")


@dataclass(frozen=True)
class Inputs:
    base_dir: Path
    dataset_dir: Path
    device: DeviceKind = DeviceKind.CPU

    @property
    def world(self) -> World:
        """One process on the device."""
        return on_ordered_device(ONE_PROCESS, self.device)


def a_recipe(**changes: object) -> Recipe:
    recipe = Recipe(
        method=Method.LORA,
        lora=LoraSpec(rank=4, dropout=0.1),
        learning_rate=5e-3,
        num_epochs=2,
        batch_size=4,
        micro_batch_size=2,
        checkpoint=CheckpointSpec(every_steps=3, every_seconds=3600),
    )
    return recipe.model_copy(update=changes)


def an_order(inputs: Inputs, recipe: Recipe | None = None, **changes: object) -> TrainingOrder:
    order = TrainingOrder(
        job_id="job-1",
        attempt=1,
        recipe=recipe or a_recipe(),
        base_dir=inputs.base_dir,
        dataset_dir=inputs.dataset_dir,
        base_sha=BASE_SHA,
        dataset_version=VERSION,
        config_hash=CONFIG_HASH,
        device=inputs.device,
    )
    return order.model_copy(update=changes)


def write_documents(directory: Path, base_dir: Path, texts: Sequence[str]) -> Path:
    """A dataset version of plain texts, as ingest makes it; the last eighth is for validation."""
    documents = [Example(line, (Turn("text", text, "text"),)) for line, text in enumerate(texts)]
    return _write_rows(directory, base_dir, documents, Method.CPT)


def write_preferences(directory: Path, base_dir: Path, rows: Sequence[tuple[str, str, str]]) -> Path:
    """A dataset version of prompts with a chosen and a rejected answer; the last eighth is for validation."""
    roles = ("prompt", "chosen", "rejected")
    pairs = [
        Example(line, tuple(Turn(role, text, role) for role, text in zip(roles, row, strict=True)))
        for line, row in enumerate(rows)
    ]
    return _write_rows(directory, base_dir, pairs, Method.DPO)


def _write_rows(directory: Path, base_dir: Path, examples: Sequence[Example], method: Method) -> Path:
    from transformers import AutoTokenizer

    [expected] = FORMATS_OF_METHOD[method]
    encoder = Encoder(
        AutoTokenizer.from_pretrained(base_dir),
        expected=expected,
        limit=WINDOW_TOKENS,
        truncation=False,
        ends=frozenset(),
    )
    encoded = encoder.encode(examples)
    num_training = len(examples) - len(examples) // 8
    directory.mkdir(parents=True)
    parts = {}
    for name, rows in (("training", encoded[:num_training]), ("validation", encoded[num_training:])):
        writer = PartWriter(directory, lambda: TokenSpool(directory, "part"), max_seq_length=WINDOW_TOKENS)
        for line, row in enumerate(rows):
            assert isinstance(row, Encoded), row
            writer.add(line, row)
        parts[name] = writer.close()
    return _write_manifest(directory, method, **parts)


def write_dataset(
    directory: Path,
    windows: Sequence[Sequence[Tokens]],
    *,
    num_parts: int = 2,
    num_validation: int | None = None,
    max_seq_length: int = WINDOW_TOKENS,
) -> Path:
    """A dataset version whose last windows, an eighth if nothing else is asked for, are for validation."""
    directory.mkdir(parents=True)
    num_training = len(windows) - (len(windows) // 8 if num_validation is None else num_validation)
    parts = [list(part) for part in np.array_split(np.arange(num_training), num_parts)]
    training = [
        _write_part(directory, f"part-{i}", [windows[w] for w in part]) for i, part in enumerate(parts)
    ]
    validation = _write_part(directory, "validation-0", windows[num_training:])
    return _write_manifest(directory, Method.LORA, tuple(training), (validation,), max_seq_length)


def _write_manifest(
    directory: Path,
    method: Method,
    training: tuple[FileEntry, ...],
    validation: tuple[FileEntry, ...],
    max_seq_length: int = WINDOW_TOKENS,
) -> Path:
    (directory / "report.json").write_text("{}")
    manifest = DatasetManifest(
        version=VERSION,
        tenant="acme",
        base_sha=BASE_SHA,
        template_sha256="7e" * 32,
        format=min(FORMATS_OF_METHOD[method]),
        method=method,
        max_seq_length=max_seq_length,
        counts=DatasetCounts(rows=0, windows=0, tokens=0, loss_tokens=0),
        training=training,
        validation=validation,
        report=_entry(directory, "report.json"),
        rules_version=1,
    )
    (directory / "manifest.json").write_text(manifest.model_dump_json())
    return directory


def a_work_dir(directory: Path, order: TrainingOrder) -> Path:
    directory.mkdir(parents=True)
    write_order(directory, order)
    return directory


def carry_out(directory: Path, order: TrainingOrder) -> tuple[Report, ...]:
    """Run the child's work in this process."""
    work_dir = a_work_dir(directory, order)
    run_child(work_dir, ONE_PROCESS, StopRequest(work_dir))
    return reports_in(work_dir)


class Child(Protocol):
    """A training process, however it was started."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...

    def terminate(self) -> None: ...


def start_child(directory: Path, order: TrainingOrder) -> subprocess.Popen[bytes]:
    """One process, as a runner starts it."""
    work_dir = a_work_dir(directory, order)
    return subprocess.Popen([*CHILD, str(work_dir)], env=environment(), stderr=log_of(work_dir))


def start_gang_node(
    directory: Path, order: TrainingOrder, *, node: int = 0, port: int | None = None
) -> subprocess.Popen[bytes]:
    """The processes of one node, through torchrun as a runner starts it; all nodes are on this machine."""
    work_dir = a_work_dir(directory, order)
    command = [
        *(sys.executable, "-m", "services.trainer_agent.training.launch"),
        *("--nnodes", str(order.nodes), "--nproc-per-node", str(order.devices_per_node)),
        *("--rdzv-backend", RENDEZVOUS, "--rdzv-endpoint", f"127.0.0.1:{port or free_port()}"),
        *("--rdzv-conf", f"rank={node}"),
        *("--max-restarts", "0", "-m", CHILD[-1], str(work_dir)),
    ]
    return subprocess.Popen(command, env=environment(), stderr=log_of(work_dir))


def reports_in(work_dir: Path) -> tuple[Report, ...]:
    path = work_dir / REPORTS
    return parse_reports(path.read_bytes())[0] if path.exists() else ()


def reports_of(reports: Sequence[Report], kind: type[T]) -> list[T]:
    return [report for report in reports if isinstance(report, kind)]


def wait_for_step(child: Child, work_dir: Path, step: int, of: type[Stepped | Saved] = Stepped) -> None:
    """Bundles are written beside the training: a step that is done may not be saved yet."""
    wait_for_report(child, work_dir, of, lambda report: report.step >= step)


def wait_for_report(
    child: Child,
    work_dir: Path,
    of: type[T],
    fits: Callable[[T], bool] = lambda _: True,
) -> None:
    def has_come() -> bool:
        return any(fits(report) for report in reports_of(reports_in(work_dir), of))

    wait_until(child, work_dir, has_come, f"the {of.__name__} that was waited for did not come")


def wait_until(child: Child, work_dir: Path, condition: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if child.poll() is not None or time.monotonic() > deadline:
            end_all(child)
            raise AssertionError(f"{failure}:\n{log_in(work_dir)}")
        time.sleep(0.01)


def wait_for_exit(child: Child, work_dir: Path) -> int:
    try:
        return child.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        end_all(child)
        raise AssertionError(f"still running:\n{log_in(work_dir)}") from None


def end_all(*children: Child) -> None:
    """What is still running of them and below them."""
    for child in children:
        if child.poll() is None:
            for process in psutil.Process(child.pid).children(recursive=True):
                process.kill()
            child.kill()
            child.wait()


def log_in(work_dir: Path) -> str:
    return (work_dir / "log").read_text()


def as_bundle(order: TrainingOrder, saved: Saved, target: Path) -> Path:
    """What a runner of a later attempt fetches: the parts and, beside them, their manifest."""
    shutil.copytree(saved.directory, target)
    (target / "manifest.json").write_text(bundle_manifest(order, saved).model_dump_json())
    return target


def rewrite_manifest(bundle: Path) -> None:
    """Make the manifest fit files that were changed after it was written."""
    manifest = BundleManifest.model_validate_json((bundle / "manifest.json").read_bytes())
    parts = tuple(_entry(bundle, part.path) for part in manifest.parts)
    changed = manifest.model_copy(update={"parts": parts})
    (bundle / "manifest.json").write_text(changed.model_dump_json())


def model_sha256(saved: Saved) -> str:
    """Digest over a bundle's model, in however many files; this node's are there."""
    entries = [e for e in saved.parts if e.path.startswith("model/") and e.path.endswith(".safetensors")]
    assert entries
    assert all(sha256_of(saved.directory / entry.path) == entry.sha256 for entry in entries)
    parts = sorted((e.path, e.sha256) for e in saved.all_parts or saved.parts if e.path.startswith("model/"))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def model_weights(bundle: Path) -> dict[str, torch.Tensor]:
    """A bundle's trained tensors, each in one of its files."""
    paths = sorted((bundle / "model").glob("*.safetensors"))
    tensors = {name: tensor for path in paths for name, tensor in load_file(path).items()}
    assert len(tensors) == sum(len(load_file(path)) for path in paths)
    return tensors


def _write_part(directory: Path, name: str, windows: Sequence[Sequence[Tokens]]) -> FileEntry:
    examples = [example for window in windows for example in window]
    path = f"{name}.safetensors"
    save_file(
        {
            "tokens": np.array([t for tokens, _ in examples for t in tokens], dtype=np.int32),
            "loss_mask": np.array([m for _, mask in examples for m in mask], dtype=np.uint8),
            "example_offsets": np.cumsum([0, *(len(tokens) for tokens, _ in examples)], dtype=np.int64),
            "example_lines": np.arange(1, len(examples) + 1, dtype=np.int64),
            "window_offsets": np.cumsum([0, *(len(window) for window in windows)], dtype=np.int64),
            "window_examples": np.arange(len(examples), dtype=np.int64),
        },
        directory / path,
    )
    return _entry(directory, path)


def _entry(directory: Path, path: str) -> FileEntry:
    file = directory / path
    return FileEntry(path=path, size_bytes=file.stat().st_size, sha256=sha256_of(file))


def environment() -> dict[str, str]:
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }


def log_of(work_dir: Path) -> int:
    return os.open(work_dir / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
