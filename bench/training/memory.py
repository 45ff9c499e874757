"""The memory estimate of `schemas/memory.py` against the measured peak of training steps on a CPU.

`python -m bench.training.memory [WORD…]` trains random models of several families, methods, windows and ways to shard
by the trainer's own network, objective and sharding, each rank in a process of its own (`memory_rank.py` says what is
measured). The rank with the most counts. Words choose the cases whose names have them all.
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench import report
from bench.training.memory_rank import Case, run_rank
from schemas.memory import Setting, Shape, estimate
from shared.ports import free_port

FORKS = get_context("forkserver")
"""Ranks are forked from one process that has imported torch."""
FORKS.set_forkserver_preload(["bench.training.memory_rank"])
SIZES = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 6}
GROUPED = {"num_key_value_heads": 2}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": SIZES | {"num_key_value_heads": 6, "vocab_size": 16_000, "tie_word_embeddings": False},
    "qwen3": SIZES | GROUPED | {"head_dim": 64, "vocab_size": 32_000, "tie_word_embeddings": True},
    "gemma3_text": SIZES
    | GROUPED
    | {"head_dim": 64, "vocab_size": 64_000, "sliding_window": 512, "tie_word_embeddings": True},
    "phi3": SIZES | {"num_key_value_heads": 6, "vocab_size": 16_000, "tie_word_embeddings": False},
}
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 1_000,
}
PARTS = ("weights_bytes", "optimizer_bytes", "activations_bytes", "logits_bytes")
CASES = (
    Case("llama", "lora"),
    Case("llama", "lora", window=1024, recomputed=True),
    Case("llama", "lora", micro_batch=2, accumulated=2),
    Case("llama", "lora", precision="bfloat16"),
    Case("llama", "qlora"),
    Case("llama", "qlora", window=1024, recomputed=True),
    Case("llama", "sft"),
    Case("llama", "sft", accumulated=2),
    Case("llama", "sft", recomputed=True),
    Case("llama", "sft", window=1024, recomputed=True, accumulated=2),
    Case("llama", "sft", precision="bfloat16"),
    Case("llama", "lora", processes=2),
    Case("llama", "sft", processes=2),
    Case("llama", "lora", processes=2, sharding="zero-3"),
    Case("llama", "sft", processes=2, sharding="zero-1"),
    Case("llama", "sft", processes=2, sharding="zero-2"),
    Case("llama", "sft", processes=2, sharding="zero-3"),
    Case("qwen3", "lora"),
    Case("qwen3", "dpo", micro_batch=2),
    Case("qwen3", "cpt", window=1024, recomputed=True),
    Case("qwen3", "sft", processes=2, recomputed=True),
    Case("gemma3_text", "lora"),
    Case("gemma3_text", "qlora", window=1024, recomputed=True),
    Case("gemma3_text", "cpt"),
    Case("gemma3_text", "dpo", processes=2),
    Case("phi3", "lora", window=256, micro_batch=4),
    Case("phi3", "dpo", weights="full"),
    Case("phi3", "sft", processes=2),
)


def main() -> None:
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            name = name_of(case)
            if all(word in name.split() for word in sys.argv[1:]):
                results[name] = run_case(case, Path(scratch))
                report.progress(f"{name}: {results[name]}")
    settings = {"models": MODELS}
    report.write("training-memory", results, packages=("torch", "transformers", "peft"), settings=settings)


def name_of(case: Case) -> str:
    words = [case.family, case.method, case.precision, f"window-{case.window}", f"micro-{case.micro_batch}"]
    words += [f"of-{case.accumulated}"]
    if case.weights != "auto":
        words.append(case.weights)
    if case.recomputed:
        words.append("recomputed")
    if case.processes > 1:
        words += [f"processes-{case.processes}", case.sharding]
    return " ".join(words)


def run_case(case: Case, scratch: Path) -> dict[str, Any]:
    """What the rank with the highest peak measured."""
    directories = (
        _model(case.family, MODELS[case.family], scratch),
        _model(case.family, SMALL, scratch / "small"),
    )
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    size = {"WORLD_SIZE": str(case.processes), "LOCAL_WORLD_SIZE": str(case.processes)}
    outputs = [scratch / f"rank-{rank}.json" for rank in range(case.processes)]
    ranks = []
    for number, output in enumerate(outputs):
        own = {"RANK": str(number), "LOCAL_RANK": str(number)}
        ranks.append(FORKS.Process(target=run_rank, args=(case, directories, output, address | size | own)))
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise SystemExit(f"{name_of(case)}: a rank failed")
    measured = [json.loads(path.read_text()) for path in outputs]
    return compared(case, max(measured, key=lambda each: int(each["measured_bytes"])))


def compared(case: Case, rank: Mapping[str, Any]) -> dict[str, Any]:
    """The estimate without what a process has before its model, and what was measured."""
    setting = Setting.of(case.recipe, num_devices=case.processes, max_seq_length=case.window, is_gpu=False)
    parts = estimate(Shape(**rank["shape"]), case.recipe, setting, gradient_checkpointing=case.recomputed)
    estimated = parts.total_bytes - parts.fixed_bytes
    return {
        "measured_mib": _mib(rank["measured_bytes"]),
        "estimated_mib": _mib(estimated),
        "ratio": round(estimated / rank["measured_bytes"], 3),
        "before_the_first_step_mib": _mib(rank["held_bytes"]),
        "parts_mib": {name: _mib(value) for name, value in parts.model_dump().items() if name in PARTS},
        "shape": rank["shape"],
    }


def _mib(size: int) -> float:
    return round(size / 2**20, 1)


def _model(family: str, sizes: Mapping[str, Any], directory: Path) -> Path:
    if (directory / family).exists():
        return directory / family
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**sizes, pad_token_id=0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(directory / family)
    return directory / family


if __name__ == "__main__":
    main()
