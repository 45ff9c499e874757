"""One run of one side of `bench.training.speed`, in a process of its own, which prints what it measured."""

import importlib
import json
import resource
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from bench.training.speed_inputs import BASE, WINDOW_TOKENS, Row, rows_in

RANK = 16
LEARNING_RATE = 2e-4
BATCH_WINDOWS = 2
BATCH_PAIRS = 4
"""About as many as fill so many windows."""
WARM_UP_STEPS = 2
BETA = 0.1
SEED = 3
OPERATIONS = {
    "products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    "attention": ("aten::_scaled_dot_product",),
    "sums and products of numbers": (
        "aten::mul",
        "aten::add",
        "aten::sub",
        "aten::div",
        "aten::neg",
        "aten::sum",
        "aten::mean",
    ),
    "copies and conversions": ("aten::copy_", "aten::_to_copy", "aten::cat", "aten::clone"),
    "four bits to numbers": ("bitsandbytes::",),
}
"""Kinds of operations, by the beginnings of their names."""


def ours(
    directory: Path,
    scratch: Path,
    method: str,
    precision: Literal["float32", "bfloat16"],
    *,
    operations: bool = False,
) -> dict[str, Any]:
    """`operations`: count the processor time of each kind of operation, which takes time of its own."""
    from schemas.specification import CheckpointSpec, LoraSpec, Method, Recipe
    from services.trainer_agent.protocol import Ended, Outcome, Saved, Stepped, TrainingOrder
    from services.trainer_agent.training.reports import Reports
    from tests.training.jobs import BASE_SHA, CONFIG_HASH, VERSION, carry_out, reports_of

    recipe = Recipe(
        method=Method(method),
        lora=LoraSpec(rank=RANK),
        learning_rate=LEARNING_RATE,
        num_epochs=1,
        batch_size=BATCH_WINDOWS,
        warmup_ratio=0.0,
        schedule="constant",
        precision=precision,
        seed=SEED,
        checkpoint=CheckpointSpec(every_steps=1_000_000, every_seconds=86_400),
    )
    order = TrainingOrder(
        job_id="bench",
        attempt=1,
        recipe=recipe,
        base_dir=directory / BASE,
        dataset_dir=_dataset(scratch / "dataset", directory, method),
        base_sha=BASE_SHA,
        dataset_version=VERSION,
        config_hash=CONFIG_HASH,
    )
    clock = _Clock(operations=operations)
    send = Reports.send

    def timed(reports: Reports, report: Any) -> None:
        if isinstance(report, Stepped):
            clock.tokens.append(report.num_tokens)
            clock.end_step()
        send(reports, report)

    Reports.send = timed  # type: ignore[method-assign, assignment]
    reports = carry_out(scratch / "work", order)
    [ended] = reports_of(reports, Ended)
    if ended.outcome is not Outcome.COMPLETED:
        raise SystemExit(f"training {ended.outcome}: {ended.message}")
    adapter = reports_of(reports, Saved)[-1].directory / "model"
    return clock.figures() | {"held_out_loss": held_out_loss(directory, adapter)}


def trl(
    directory: Path,
    scratch: Path,
    method: str,
    precision: str,
    *,
    autocast: bool = False,
    operations: bool = False,
    **flags: Any,
) -> dict[str, Any]:
    """`autocast`: the base's weights stay in float32, and products are computed in bfloat16."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer

    dtype = torch.bfloat16 if precision == "bfloat16" and not autocast else torch.float32
    common: dict[str, Any] = {
        "output_dir": str(scratch / "trl"),
        "use_cpu": True,
        "bf16": autocast,
        "num_train_epochs": 1,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "max_length": WINDOW_TOKENS,
        "gradient_checkpointing": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "seed": SEED,
    }
    flags |= {"beta": BETA} if method == "dpo" else {"completion_only_loss": True}
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    clock = _Clock(operations=operations)

    kind: Any = importlib.import_module("trl")
    settings, trainer_of = (
        (kind.DPOConfig, kind.DPOTrainer) if method == "dpo" else (kind.SFTConfig, kind.SFTTrainer)
    )
    if method == "dpo":
        # The rows are tokens already; it has no option to say so.
        trainer_of._prepare_dataset = lambda _, dataset, *__, **___: dataset  # noqa: SLF001
    trainer = trainer_of(
        _base(directory, method, dtype),
        args=settings(**common | flags),
        train_dataset=Dataset.from_list(_columns(directory, method)),
        processing_class=AutoTokenizer.from_pretrained(directory / BASE),
        peft_config=lora,
        callbacks=[_timed(clock)],
    )
    trainer.data_collator = _counted(trainer.data_collator, clock)
    trainer.train()
    adapter = scratch / "adapter"
    trainer.save_model(str(adapter))
    return clock.figures() | {"held_out_loss": held_out_loss(directory, adapter)}


class _Clock:
    def __init__(self, *, operations: bool) -> None:
        from torch.profiler import ProfilerActivity, profile

        self.tokens: list[int] = []
        self.ends: list[float] = []
        self._profile = profile(activities=[ProfilerActivity.CPU]) if operations else None

    def end_step(self) -> None:
        self.ends.append(time.monotonic())
        if self._profile and len(self.ends) == WARM_UP_STEPS:
            self._profile.start()

    def figures(self) -> dict[str, Any]:
        """Of the steps after the first ones, with all that lies between two of them."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        tokens = sum(self.tokens[WARM_UP_STEPS : len(self.ends)])
        seconds = self.ends[-1] - self.ends[WARM_UP_STEPS - 1]
        return {
            "steps": len(self.ends),
            "tokens": sum(self.tokens[: len(self.ends)]),
            "tokens_per_second": tokens / seconds,
            "peak_memory_mib": peak / 2**20,
            **({"milliseconds_per_token": self._by_operation(tokens)} if self._profile else {}),
        }

    def _by_operation(self, tokens: int) -> dict[str, float]:
        """Processor time of each kind of operation in itself, by tokens."""
        assert self._profile is not None, "operations are counted"
        self._profile.stop()
        times = dict.fromkeys((*OPERATIONS, "all else"), 0.0)
        for event in self._profile.key_averages():
            kind = next(
                (kind for kind, words in OPERATIONS.items() if event.key.startswith(words)), "all else"
            )
            times[kind] += event.self_cpu_time_total / 1_000 / tokens
        return {kind: round(time, 4) for kind, time in times.items()}


def _columns(directory: Path, method: str) -> list[dict[str, Any]]:
    """The rows to train on, as TRL has them once they are tokens."""
    training, _ = rows_in(directory)
    if method == "dpo":
        return [
            {"prompt_ids": row.prompt, "chosen_ids": row.chosen, "rejected_ids": row.rejected}
            for row in training
        ]
    return [
        {
            "input_ids": row.prompt + row.chosen,
            "completion_mask": [0] * len(row.prompt) + [1] * len(row.chosen),
        }
        for row in training
    ]


def _base(directory: Path, method: str, dtype: Any) -> Any:
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    quantized = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    loading = {"quantization_config": quantized, "device_map": {"": "cpu"}} if method == "qlora" else {}
    return AutoModelForCausalLM.from_pretrained(directory / BASE, dtype=dtype, **loading)


def _counted(collate: Any, clock: _Clock) -> Any:
    def counted(examples: list[dict[str, Any]]) -> Any:
        batch = collate(examples)
        mask = batch.get("attention_mask")
        clock.tokens.append(int(batch["input_ids"].numel() if mask is None else mask.sum()))
        return batch

    return counted


def _timed(clock: _Clock) -> Any:
    from transformers import TrainerCallback

    def on_step_end(*_: Any, **__: Any) -> None:
        clock.end_step()

    callback: Any = TrainerCallback()
    callback.on_step_end = on_step_end
    return callback


def held_out_loss(directory: Path, adapter: Path) -> float:
    """Mean over the tokens of the chosen answers that nobody trained on, by PEFT on the base in float32."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(directory / BASE, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, adapter).eval()
    losses = []
    with torch.no_grad():
        for row in rows_in(directory)[1]:
            tokens = torch.tensor([row.prompt + row.chosen])
            log_probs = torch.log_softmax(model(tokens).logits[0, :-1].float(), dim=-1)
            targets = tokens[0, 1:]
            losses.append(-log_probs.gather(1, targets[:, None])[len(row.prompt) - 1 :, 0])
    return float(torch.cat(losses).mean())


def _dataset(output: Path, directory: Path, method: str) -> Path:
    """As ingest writes it."""
    from schemas.artifacts import DatasetCounts, DatasetManifest, FileEntry
    from schemas.specification import FORMATS_OF_METHOD, Method
    from services.ingest.pipeline.parts import PartWriter, TokenSpool
    from services.trainer_agent.training.bundle import sha256_of
    from tests.training.jobs import BASE_SHA, VERSION

    output.mkdir(parents=True)

    def part_of(rows: Iterable[Row]) -> tuple[FileEntry, ...]:
        writer = PartWriter(output, lambda: TokenSpool(output, "part"), max_seq_length=WINDOW_TOKENS)
        for line, row in enumerate(rows):
            writer.add(line, _encoded(row, is_pair=method == "dpo"))
        return writer.close()

    training, held_out = rows_in(directory)
    report = output / "report.json"
    report.write_text("{}")
    manifest = DatasetManifest(
        version=VERSION,
        tenant="bench",
        base_sha=BASE_SHA,
        template_sha256="7e" * 32,
        format=min(FORMATS_OF_METHOD[Method(method)]),
        method=Method(method),
        max_seq_length=WINDOW_TOKENS,
        counts=DatasetCounts(rows=0, windows=0, tokens=0, loss_tokens=0),
        training=part_of(training),
        validation=part_of(held_out),
        report=FileEntry(path=report.name, size_bytes=report.stat().st_size, sha256=sha256_of(report)),
        rules_version=1,
    )
    (output / "manifest.json").write_text(manifest.model_dump_json())
    return output


def _encoded(row: Row, *, is_pair: bool) -> Any:
    import numpy as np

    from services.ingest.pipeline.tokens import Encoded

    sides = (row.chosen, row.rejected) if is_pair else (row.chosen,)
    tokens = [token for side in sides for token in (*row.prompt, *side)]
    mask = [bit for side in sides for bit in (*[0] * len(row.prompt), *[1] * len(side))]
    border = len(row.prompt) + len(row.chosen) if is_pair else 0
    return Encoded(np.array(tokens, np.int32), np.array(mask, np.uint8), border)


if __name__ == "__main__":
    side, *paths, arguments = sys.argv[1:]
    run: Any = {"ours": ours, "trl": trl}[side]
    print(json.dumps(run(*map(Path, paths), **json.loads(arguments))))
