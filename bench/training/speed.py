"""Tokens per second and memory of training an adapter on a CPU, against TRL with its best flags.

`python -m bench.training.speed ["METHOD SHAPE PRECISION"…]` trains the same rows by both sides, in turns, each run
in a process of its own: the same base, rank, rate, schedule and number of tokens of an optimizer step. First every
variant of TRL runs once, and the fastest is the peer. Counted are real tokens, without padding, from the end of the
second step to the end of the last. The losses of both adapters on rows that nobody trained on must agree within
0.5 %.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import report
from bench.training.speed_inputs import SHAPES, WINDOW_TOKENS, make
from bench.training.speed_sides import BATCH_PAIRS, BATCH_WINDOWS, LEARNING_RATE, RANK, WARM_UP_STEPS

ROUNDS = 5
SEED = 11
MAX_LOSS_DIFFERENCE = 0.005
_PADDED = {"per_device_train_batch_size": 8}
SUPERVISED: Mapping[str, dict[str, Any]] = {
    "padded": _PADDED,
    "grouped by length": _PADDED | {"train_sampling_strategy": "group_by_length"},
    "packed": {"packing": True, "per_device_train_batch_size": BATCH_WINDOWS},
    "packed, wrapped": {
        "packing": True,
        "packing_strategy": "wrapped",
        "per_device_train_batch_size": BATCH_WINDOWS,
    },
    "without padding": _PADDED | {"padding_free": True},
}
PREFERENCES: Mapping[str, dict[str, Any]] = {
    "padded": {"per_device_train_batch_size": BATCH_PAIRS},
    "reference first": {"per_device_train_batch_size": BATCH_PAIRS, "precompute_ref_log_probs": True},
}


@dataclass(frozen=True)
class Case:
    method: str
    shape: str
    precision: str

    def __str__(self) -> str:
        return f"{self.method} {self.shape} {self.precision}"

    @property
    def variants(self) -> Mapping[str, dict[str, Any]]:
        variants = PREFERENCES if self.method == "dpo" else SUPERVISED
        if self.precision == "float32" or self.method == "qlora":
            return variants
        autocast = {f"{name}, autocast": flags | {"autocast": True} for name, flags in variants.items()}
        return {**variants, **autocast}


CASES = (
    *(Case("lora", shape, precision) for shape in SHAPES for precision in ("float32", "bfloat16")),
    Case("qlora", "body-heavy", "bfloat16"),
    Case("dpo", "head-heavy", "float32"),
    Case("dpo", "body-heavy", "bfloat16"),
)


def main() -> None:
    chosen = [case for case in CASES if not sys.argv[1:] or str(case) in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as scratch:
        for case in chosen:
            inputs = Path(scratch) / case.shape
            if not inputs.exists():
                make(inputs, SHAPES[case.shape], seed=SEED)
            write(case, compared(case, inputs))


def write(case: Case, results: Mapping[str, Any]) -> None:
    settings = {
        "rounds": ROUNDS,
        "rank": RANK,
        "learning_rate": LEARNING_RATE,
        "max_seq_length": WINDOW_TOKENS,
        "windows_per_step": BATCH_WINDOWS,
        "warm_up_steps": WARM_UP_STEPS,
        "shape": vars(SHAPES[case.shape]),
    }
    packages = ("torch", "transformers", "peft", "trl", "bitsandbytes")
    name = f"training-speed-{case.method}-{case.shape}-{case.precision}"
    report.write(name, results, packages=packages, settings=settings)


def compared(case: Case, inputs: Path) -> dict[str, Any]:
    tried = {name: run("trl", case, inputs, **flags) for name, flags in case.variants.items()}
    for name, figures in tried.items():
        report.progress(f"{case}: trl, {name}: {figures}")
    running = {name: figures for name, figures in tried.items() if "problem" not in figures}
    best = max(running, key=lambda name: running[name]["tokens_per_second"])
    sides: dict[str, list[dict[str, Any]]] = {"ours": [], "trl": []}
    for number in range(ROUNDS):
        for side, flags in (("ours", {}), ("trl", case.variants[best])):
            figures = run(side, case, inputs, **flags)
            if "problem" in figures:
                raise SystemExit(f"{case}: {side}: {figures['problem']}")
            sides[side].append(figures)
            report.progress(f"{case}: round {number + 1}, {side}: {figures}")
    losses = {side: statistics.median(each["held_out_loss"] for each in runs) for side, runs in sides.items()}
    difference = abs(losses["ours"] - losses["trl"]) / losses["trl"]
    if difference > MAX_LOSS_DIFFERENCE:
        raise SystemExit(f"{case}: losses on rows held out are {losses}, {difference:.2%} apart")
    speeds = {side: [each["tokens_per_second"] for each in runs] for side, runs in sides.items()}
    memory = {side: [each["peak_memory_mib"] for each in runs] for side, runs in sides.items()}
    return {
        "tokens_per_second": {side: report.summary(values) for side, values in speeds.items()},
        "times_the_peer": report.summary([a / b for a, b in zip(speeds["ours"], speeds["trl"], strict=True)]),
        "peak_memory_mib": {side: report.summary(values) for side, values in memory.items()},
        "memory_share_of_the_peer": statistics.median(memory["ours"]) / statistics.median(memory["trl"]),
        "held_out_loss": losses,
        "steps": {side: runs[0]["steps"] for side, runs in sides.items()},
        "tokens": {side: runs[0]["tokens"] for side, runs in sides.items()},
        "peer": best,
        "variants_tried_once": tried,
    }


def run(side: str, case: Case, inputs: Path, **flags: Any) -> dict[str, Any]:
    """A variant that fails is no peer: its last line says why."""
    with tempfile.TemporaryDirectory() as scratch:
        arguments = json.dumps({"method": case.method, "precision": case.precision} | flags)
        command = [sys.executable, "-m", "bench.training.speed_sides", side, str(inputs), scratch, arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout if done.returncode == 0 else done.stderr).splitlines()
    figures: dict[str, Any] = json.loads(lines[-1]) if done.returncode == 0 else {"problem": lines[-1]}
    return figures


if __name__ == "__main__":
    main()
