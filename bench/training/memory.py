"""The memory estimate of `schemas/memory.py` against the measured peak of a training step on a CPU.

`python -m bench.training.memory [SHAPE…]` trains random models of several widths for two steps, each in a process of
its own, by the trainer's own network, loss and optimizer, and compares the growth of its resident memory with the
estimate.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import report
from schemas.memory import Setting, Shape, estimate
from schemas.specification import LoraSpec, Recipe

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "vocab_size": 4_096},
    "deep": {"hidden_size": 384, "intermediate_size": 1_024, "num_hidden_layers": 24, "vocab_size": 8_192},
    "mid-size": {
        "hidden_size": 768,
        "intermediate_size": 2_048,
        "num_hidden_layers": 12,
        "vocab_size": 32_000,
    },
}
WINDOW_TOKENS = 1_024
CASES = tuple(
    {"shape": shape, "method": method, "precision": precision, "recomputed": recomputed}
    for shape in sys.argv[1:] or SHAPES
    for method in ("lora", "sft")
    for precision in ("float32", "bfloat16")
    for recomputed in (False, True)
)


def main() -> None:
    results = {}
    for case in CASES:
        done = subprocess.run(
            [sys.executable, "-m", "bench.training.memory", json.dumps(case)],
            capture_output=True,
            text=True,
            check=True,
            # Else freed blocks stay in the heap, and its holes count as the model's.
            env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"},
        )
        name = " ".join(f"{key}={value}" for key, value in case.items())
        results[name] = json.loads(done.stdout.splitlines()[-1])
        report.progress(f"{name}: {results[name]}")
    settings = {"max_seq_length": WINDOW_TOKENS, "micro_batch_size": 1, "shapes": SHAPES}
    report.write("training-memory", results, packages=("torch", "transformers", "peft"), settings=settings)


def measure(case: dict[str, Any]) -> dict[str, float]:
    """Growth of this process's resident memory, and the estimate without what the process had before."""
    # Only the process of one case pays for these imports.
    import torch

    from services.trainer_agent.training.network import build_network, trainable
    from services.trainer_agent.training.optimizer import Optimizer
    from services.trainer_agent.training.tensors import Inputs

    lora = LoraSpec(rank=16) if case["method"] == "lora" else LoraSpec()
    recipe = Recipe(method=case["method"], lora=lora, learning_rate=1e-4, precision=case["precision"])
    with tempfile.TemporaryDirectory() as folder:
        shape = _write_model(SHAPES[case["shape"]], Path(folder))
        # Libraries allocate for themselves when they are first used.
        torch.nn.Linear(64, 64)(torch.zeros(64, 64)).sum().backward()
        before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        network = build_network(recipe, Path(folder), torch.device("cpu"))
        if case["recomputed"]:
            network.causal_lm.gradient_checkpointing_enable({"use_reentrant": False})
        optimizer = Optimizer.of(trainable(network), recipe)
        tokens = torch.randint(0, shape.vocab_size, (1, WINDOW_TOKENS))
        half = torch.arange(WINDOW_TOKENS // 2)
        inputs = Inputs(tokens, torch.cat([half, half])[None], torch.arange(WINDOW_TOKENS - 1), tokens[0, 1:])
        # The moments exist from the first step's end on, so that the second one has its peak beside them.
        for _ in range(2):
            network(inputs).mean().backward()
            optimizer.step(1e-4)
        measured = _resident("VmHWM") - before
    setting = Setting.of(recipe, num_devices=1, max_seq_length=WINDOW_TOKENS, is_gpu=False)
    memory_estimate = estimate(shape, recipe, setting, gradient_checkpointing=case["recomputed"])
    estimated = memory_estimate.total_bytes - memory_estimate.fixed_bytes
    return {
        "measured_mib": round(measured / 2**20, 1),
        "estimated_mib": round(estimated / 2**20, 1),
        "ratio": round(estimated / measured, 3),
    }


def _write_model(sizes: dict[str, int], folder: Path) -> Shape:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = sizes["hidden_size"] // 64
    config = LlamaConfig(
        **sizes, num_attention_heads=heads, num_key_value_heads=heads, tie_word_embeddings=False
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    linears = [m for m in model.model.modules() if isinstance(m, torch.nn.Linear)]
    return Shape(
        num_parameters=sum(p.numel() for p in model.parameters()),
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        inner_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        lora_values_per_rank=sum(linear.in_features + linear.out_features for linear in linears),
    )


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("{"):
        print(json.dumps(measure(json.loads(sys.argv[1]))))
    else:
        main()
