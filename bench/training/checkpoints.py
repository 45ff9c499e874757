"""How long training pauses for a checkpoint of 480 MB, against torch.save and torch.distributed.checkpoint.

`python -m bench.training.checkpoints` takes steps of a real LoRA run whose adapter and moments have 480 MB. Each
round saves the state once in each way. Counted is the time until the next step may begin, and the time until the
files are on disk, with fsync: `retune` writes its own bundle, by its own saver, the digests of every file and the
loss of the next step included, which is a forward pass of one micro batch, here of a few tokens; the peers write the
same tensors. What each wrote is read again and compared.
"""

import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from bench import report
from schemas.specification import CheckpointSpec, LoraSpec, Method, Recipe
from services.trainer_agent.protocol import BundleKind, bundle_dir
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.saver import Saver
from services.trainer_agent.training.setup import prepare
from services.trainer_agent.training.step import take_step
from services.trainer_agent.training.stop import StopRequest
from tests.tiny_model import build_tiny_model
from tests.training.jobs import ONE_PROCESS, Inputs, a_work_dir, an_order, write_dataset

ROUNDS = 5
RANK = 480
HIDDEN_SIZE, NUM_LAYERS = 768, 6
WINDOW_TOKENS = 32
State = dict[str, Tensor]


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        run = _prepared(directory)
        stop = StopRequest(run.work_dir)
        take_step(run, stop)
        size = sum(_bytes(tensor) for tensor in _state_of(run).values())
        report.progress(f"state: {size / 1e6:.0f} MB")
        saver = Saver(run)  # as a job, one for all of its bundles
        ways = {
            "retune": lambda run, _: _retune(run, saver),
            "torch.save": _torch_save,
            "dcp.async_save": _dcp,
        }
        times: dict[str, dict[str, list[float]]] = {name: {"pause": [], "durable": []} for name in ways}
        for number in range(ROUNDS + 1):
            for name, save in ways.items():
                take_step(run, stop)
                pause, durable = save(run, directory / f"{name}-{number}")
                if number:  # the first of each warms up
                    times[name]["pause"].append(pause)
                    times[name]["durable"].append(durable)
                report.progress(f"round {number}, {name}: pause {pause:.3f} s, on disk after {durable:.3f} s")
    _write(times, size)


def _write(times: Mapping[str, Mapping[str, list[float]]], size: int) -> None:
    pauses = {name: each["pause"] for name, each in times.items()}
    results = {
        "state_bytes": size,
        "pause_seconds": {name: report.summary(values) for name, values in pauses.items()},
        "seconds_until_on_disk": {name: report.summary(each["durable"]) for name, each in times.items()},
        "pause_by_peer": {
            peer: report.summary(
                [own / other for own, other in zip(pauses["retune"], pauses[peer], strict=True)]
            )
            for peer in ("torch.save", "dcp.async_save")
        },
        "median_pause_ms": {name: 1000 * statistics.median(values) for name, values in pauses.items()},
    }
    settings = {"rounds": ROUNDS, "rank": RANK, "hidden_size": HIDDEN_SIZE, "layers": NUM_LAYERS}
    report.write("training-checkpoints", results, packages=("torch", "safetensors"), settings=settings)


def _prepared(directory: Path) -> Run:
    text = "\n".join(f"def f{number}(x): return x + {number}" for number in range(2000))
    base_dir = build_tiny_model(directory / "base", text=text, hidden_size=HIDDEN_SIZE, num_layers=NUM_LAYERS)
    tokens = list(range(40, 40 + WINDOW_TOKENS))
    windows = [[(tokens, [int(index > 8) for index in range(WINDOW_TOKENS)])] for _ in range(128)]
    recipe = Recipe(
        method=Method.LORA,
        lora=LoraSpec(rank=RANK),
        learning_rate=1e-4,
        num_epochs=4,
        batch_size=1,
        micro_batch_size=1,
        checkpoint=CheckpointSpec(every_steps=100_000, every_seconds=86_400),
    )
    order = an_order(Inputs(base_dir, write_dataset(directory / "dataset", windows)), recipe)
    work_dir = a_work_dir(directory / "work", order)
    run, _ = prepare(order, work_dir, ONE_PROCESS, Reports(work_dir, ONE_PROCESS))
    return run


def _retune(run: Run, saver: Saver) -> tuple[float, float]:
    began = time.monotonic()
    saver.begin(BundleKind.PERIODIC)
    pause = time.monotonic() - began
    saver.finish()
    directory = bundle_dir(run.work_dir, run.step)
    _sync(directory)
    durable = time.monotonic() - began
    written = load_file(directory / "optimizer" / "rank-0.safetensors")
    written |= load_file(directory / "model" / "adapter_model.safetensors")
    _require_equal(written, _state_of(run))
    return pause, durable


def _torch_save(run: Run, path: Path) -> tuple[float, float]:
    def save(state: State) -> None:
        torch.save(state, path)
        _sync(path)

    seconds = _timed(save, _state_of(run))
    _require_equal(torch.load(path, weights_only=True), _state_of(run))
    path.unlink()
    return seconds, seconds


def _dcp(run: Run, path: Path) -> tuple[float, float]:
    began = time.monotonic()
    saving: Any = async_save(_state_of(run), checkpoint_id=path, no_dist=True)
    pause = time.monotonic() - began
    saving.result()
    _sync(path)
    durable = time.monotonic() - began
    read = {name: torch.empty_like(tensor) for name, tensor in _state_of(run).items()}
    load(read, checkpoint_id=path, no_dist=True)
    _require_equal(read, _state_of(run))
    return pause, durable


def _timed(save: Callable[[State], None], state: State) -> float:
    began = time.monotonic()
    save(state)
    return time.monotonic() - began


def _state_of(run: Run) -> State:
    """The live tensors: nobody's clock pays for a copy that its way of saving does not make."""
    state: State = {}
    for held in run.sharding.held():
        name = held.slice.tensor
        state |= {name: held.weight} | {f"{name}.{part}": value for part, value in held.moments.items()}
    return state


def _sync(path: Path) -> None:
    for file in [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def _require_equal(written: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    if written.keys() != expected.keys() or any(
        _sha256(written[name]) != _sha256(expected[name]) for name in expected
    ):
        raise SystemExit("what was written is not what was to be saved")


def _sha256(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(-1).view(torch.uint8).numpy().data).hexdigest()


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


if __name__ == "__main__":
    main()
