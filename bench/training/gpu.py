"""Models of real size on one GPU: tokens per second, share of the device's peak, and memory against the estimate.

`python -m bench.training.gpu ["MODEL METHOD MODE"…]` takes a few optimizer steps of random weights on rows whose
lengths are spread as those of real ones, each case in a process of its own, and writes a file for each. Counted are
real tokens, without padding; figures are medians of the steps after the first ones. The modes are what a job runs as
(`default`), the same where sums may have any order (`any-order`), and one whose recipe has its layers compiled
(`compiled`).
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import report

WINDOW_TOKENS = 4096
WINDOWS_PER_STEP = 8
MICRO_BATCH = 2
NUM_STEPS = 6
WARM_UP_STEPS = 2
RANK = 16
SEED = 5
TIMEOUT_SECONDS = 150


@dataclass(frozen=True)
class Shape:
    """Of a Llama."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    inner_size: int
    vocab_size: int
    is_tied: bool


SHAPES = {
    # As Llama 3.2 1B and Llama 3.1 8B.
    "1b": Shape(2048, 16, 32, 8, 8192, 128_256, True),
    "8b": Shape(4096, 32, 32, 8, 14_336, 128_256, False),
}
CASES = (
    "1b lora default",
    "1b lora any-order",
    "8b lora default",
    "8b sft default",
    "8b lora compiled",
    "8b qlora default",
)


def main() -> None:
    chosen = [case for case in CASES if not sys.argv[1:] or case in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as scratch:
        for case in chosen:
            figures = _run(case, Path(scratch))
            if "problem" in figures:
                report.progress(f"{case}: {figures['problem']}")
            else:
                _write(case, figures)


def _write(case: str, figures: dict[str, Any]) -> None:
    model, method, mode = case.split()
    settings = {
        "max_seq_length": WINDOW_TOKENS,
        "windows_per_step": WINDOWS_PER_STEP,
        "windows_per_forward_pass": MICRO_BATCH,
        "rank": RANK,
        "optimizer": _optimizer(method),
        "steps": NUM_STEPS,
        "warm_up_steps": WARM_UP_STEPS,
        "shape": asdict(SHAPES[model]),
    }
    packages = ("torch", "transformers", "peft", "bitsandbytes")
    report.write(f"training-gpu-{model}-{method}-{mode}", figures, packages=packages, settings=settings)


def _optimizer(method: str) -> str:
    return "adamw_8bit" if method == "sft" else "adamw"


def _run(case: str, scratch: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.training.gpu", "--one", str(scratch), *case.split()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return {"problem": f"no end within {TIMEOUT_SECONDS} s"}
    if done.returncode:
        return {"problem": done.stderr[-1500:]}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(scratch: Path, model: str, method: str, mode: str) -> dict[str, Any]:
    """One case, in this process."""
    import torch

    from services.trainer_agent.training.reports import Reports
    from services.trainer_agent.training.setup import compare, prepare
    from services.trainer_agent.training.step import take_step
    from services.trainer_agent.training.stop import StopRequest
    from services.trainer_agent.training.throughput import device_name, memory_bytes
    from tests.training.jobs import a_work_dir

    base_dir = scratch / model
    if not base_dir.exists():
        _write_base(base_dir, SHAPES[model])
    began = time.monotonic()
    order, world = _order(base_dir, scratch, method, compiles=mode == "compiled")
    work_dir = a_work_dir(Path(tempfile.mkdtemp(dir=scratch)) / "work", order)
    stop = StopRequest(work_dir)
    run, _ = prepare(order, work_dir, world, Reports(work_dir, world))
    compare(run, None, stop)
    prepared_seconds = time.monotonic() - began
    if mode == "any-order":
        torch.use_deterministic_algorithms(False)
    steps = []
    for _ in range(NUM_STEPS):
        step = take_step(run, stop)
        assert step is not None
        steps.append(step)
    measured = steps[WARM_UP_STEPS:]
    [preparation] = [
        each["preparation"]
        for each in map(json.loads, (work_dir / "reports.jsonl").read_text().splitlines())
        if "preparation" in each
    ]
    return {
        "device": device_name(run.device),
        "attention": preparation["attention"],
        "packing": preparation["packing"],
        "gradient_checkpointing": preparation["gradient_checkpointing"],
        "prepared_seconds": prepared_seconds,
        "first_step_seconds": steps[0].num_tokens / steps[0].tokens_per_second,
        "tokens_per_second": statistics.median(step.tokens_per_second for step in measured),
        "mfu": statistics.median(step.mfu or 0.0 for step in measured),
        "peak_memory_gib": memory_bytes(run.device) / 2**30,
        "estimated_memory_gib": _estimated(run) / 2**30,
        "losses": [step.loss for step in steps],
    }


def _write_base(directory: Path, shape: Shape) -> None:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.inner_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=2 * WINDOW_TOKENS,
        tie_word_embeddings=shape.is_tied,
    )
    torch.manual_seed(SEED)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(directory)
    del model
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def _order(base_dir: Path, scratch: Path, method: str, *, compiles: bool) -> tuple[Any, Any]:
    from schemas.base import DeviceKind
    from schemas.specification import LoraSpec, Method, Recipe
    from tests.training.jobs import Inputs, an_order, write_dataset

    recipe = Recipe.model_validate(
        {
            "method": Method(method),
            "lora": LoraSpec(rank=RANK),
            "learning_rate": 1e-4,
            "num_epochs": 1,
            "batch_size": WINDOWS_PER_STEP,
            "micro_batch_size": MICRO_BATCH,
            "optimizer": _optimizer(method),
            "gradient_checkpointing": "auto",
            "compile": compiles or None,
            "seed": SEED,
        }
    )
    dataset_dir = scratch / "dataset"
    if not dataset_dir.exists():
        write_dataset(dataset_dir, _windows(), num_parts=1, max_seq_length=WINDOW_TOKENS)
    inputs = Inputs(base_dir, dataset_dir, DeviceKind.CUDA)
    return an_order(inputs, recipe), inputs.world


def _windows() -> list[list[tuple[list[int], list[int]]]]:
    """As many as the steps take, and an eighth more for validation; filled to the end with random tokens."""
    draw = random.Random(SEED)
    windows = []
    for _ in range(-(-NUM_STEPS * WINDOWS_PER_STEP * 8 // 7)):
        window, room = [], WINDOW_TOKENS
        while room:
            length = min(room, max(8, round(draw.lognormvariate(5.5, 0.8))))
            tokens = [draw.randrange(100_000) for _ in range(length)]
            window.append((tokens, [int(index >= length // 3) for index in range(length)]))
            room -= length
        windows.append(window)
    return windows


def _estimated(run: Any) -> int:
    from schemas.memory import Setting, estimate
    from services.trainer_agent.training.memory import shape_of

    setting = Setting(1, WINDOW_TOKENS, "bfloat16")
    recomputed = run.network.causal_lm.is_gradient_checkpointing
    return estimate(
        shape_of(run.network, run.order), run.order.recipe, setting, gradient_checkpointing=recomputed
    ).total_bytes


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(Path(sys.argv[2]), *sys.argv[3:])))
    else:
        main()
