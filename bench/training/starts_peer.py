"""The other side of `bench.training.starts`: a script with TRL, as its users write them.

`python -m bench.training.starts_peer INPUTS OUTPUT SAVED LAST [CHECKPOINT]` trains until step LAST, saves after
the steps in SAVED (with commas between them), and prints `<step> <loss>` after each step.
"""

import importlib
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from datasets import Dataset, load_from_disk
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from bench.training.starts_inputs import BASE, BATCH_ROWS, DROPOUT, LEARNING_RATE, RANK, ROWS, SEED

ARROW = "arrow"


def write_rows(inputs: Path) -> None:
    """As the script reads them: it must not pay for their preparation at each start."""
    rows = json.loads((inputs / ROWS).read_text())
    columns = {"input_ids": rows, "completion_mask": [[0, *[1] * (len(row) - 1)] for row in rows]}
    Dataset.from_dict(columns).save_to_disk(inputs / ARROW)


def main(inputs: Path, output: Path, saved: Collection[int], last: int, checkpoint: str | None) -> None:
    trl: Any = importlib.import_module("trl")
    settings = trl.SFTConfig(
        output_dir=str(output),
        use_cpu=True,
        bf16=False,
        num_train_epochs=1,
        per_device_train_batch_size=BATCH_ROWS,
        learning_rate=LEARNING_RATE,
        max_length=None,
        completion_only_loss=True,
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        seed=SEED,
    )
    trainer: Any = trl.SFTTrainer(
        AutoModelForCausalLM.from_pretrained(inputs / BASE),
        args=settings,
        train_dataset=load_from_disk(inputs / ARROW),
        processing_class=AutoTokenizer.from_pretrained(inputs / BASE),
        peft_config=LoraConfig(
            r=RANK,
            lora_alpha=2 * RANK,
            lora_dropout=DROPOUT,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
    )
    loss = _recorded(trainer)

    def on_step_end(_: Any, state: Any, control: Any, **__: Any) -> Any:
        print(state.global_step, loss[-1], flush=True)
        control.should_save = state.global_step in saved
        control.should_training_stop = state.global_step >= last
        return control

    callback: Any = TrainerCallback()
    callback.on_step_end = on_step_end
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=checkpoint)


def _recorded(trainer: Any) -> list[float]:
    """The newest loss is the last one."""
    losses: list[float] = []
    step = trainer.training_step

    def training_step(*arguments: Any, **options: Any) -> Any:
        loss = step(*arguments, **options)
        losses.append(float(loss))
        return loss

    trainer.training_step = training_step
    return losses


if __name__ == "__main__":
    inputs, output, saved, last, *checkpoint = sys.argv[1:]
    main(
        Path(inputs),
        Path(output),
        {int(step) for step in saved.split(",") if step},
        int(last),
        checkpoint[0] if checkpoint else None,
    )
