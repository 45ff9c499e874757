"""One rank of one case of `bench.training.memory`, in a process of its own.

Measured is the growth of the process's resident memory from before it has a model to the highest moment of two steps.
The moments exist from the first step's end on, so that the second one has its peak beside them. What loading takes
for a moment is no part of it. Blocks of 64 KiB and more go back to the system where they are freed
(`MALLOC_MMAP_THRESHOLD_`), so that what is resident is what is allocated.
"""

import gc
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import bitsandbytes  # noqa: F401 imported for what it allocates
import deepspeed  # noqa: F401 likewise
import numpy as np
import torch

from schemas.memory import Precision, Shape
from schemas.specification import LoraSpec, Method, Recipe, ShardingSpec
from services.trainer_agent.training.dataset import Example, Window
from services.trainer_agent.training.distributed import World, joined, own_world
from services.trainer_agent.training.memory import shape_of
from services.trainer_agent.training.methods import OBJECTIVES
from services.trainer_agent.training.network import build_network
from services.trainer_agent.training.sharding import reads_when_sharded, shard
from tests.training.jobs import Inputs, an_order

RANK = 16
EXAMPLES_OF_A_WINDOW = 4


@dataclass(frozen=True)
class Case:
    family: str
    method: str
    weights: Literal["auto", "adapter", "full"] = "auto"
    precision: Precision = "float32"
    recomputed: bool = False
    window: int = 512
    micro_batch: int = 1
    accumulated: int = 1
    """Micro batches of a step."""
    processes: int = 1
    sharding: str = "fsdp2"
    """Or the stage of ZeRO."""

    @property
    def recipe(self) -> Recipe:
        stage = None if self.sharding == "fsdp2" else int(self.sharding.removeprefix("zero-"))
        library = "fsdp2" if stage is None else "deepspeed"
        sharding = ShardingSpec.model_validate({"library": library, "stage": stage})
        return Recipe(
            method=Method(self.method),
            weights=self.weights,
            lora=LoraSpec(rank=RANK),
            learning_rate=1e-4,
            precision=self.precision,
            batch_size=self.processes * self.micro_batch * self.accumulated,
            micro_batch_size=self.micro_batch,
            gradient_checkpointing=self.recomputed,
            sharding=sharding if self.processes > 1 else None,
        )


def run_rank(case: Case, directories: tuple[Path, Path], output: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    output.write_text(json.dumps(measure(case, *directories)))


def measure(case: Case, base_dir: Path, small_dir: Path) -> dict[str, Any]:
    """What this rank measured, and the shape of the model as the training process knows it."""
    world = own_world(os.environ)
    with joined(world, even_alone=case.recipe.sharded.library == "deepspeed"):
        # Libraries allocate for themselves when they are first used.
        _trained(case, small_dir, world)
        gc.collect()
        before = _resident("VmRSS")
        held, shape = _trained(case, base_dir, world)
        measured = _resident("VmHWM") - before
    return {"held_bytes": held - before, "measured_bytes": measured, "shape": asdict(shape)}


def _trained(case: Case, base_dir: Path, world: World) -> tuple[int, Shape]:
    """Bytes that were resident before the first step, and the shape. The highest moment counts from there on."""
    order = an_order(Inputs(base_dir, base_dir), case.recipe, devices_per_node=case.processes)
    in_rows = reads_when_sharded(case.recipe, world)
    network = build_network(case.recipe, base_dir, world.device, in_rows=in_rows)
    if case.recomputed:
        network.causal_lm.gradient_checkpointing_enable({"use_reentrant": False})
    shape = shape_of(network, order)
    sharding = shard(network, case.recipe, world)
    windows = _windows(case, shape.vocab_size)
    held = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    for num_micro_batches in (1, case.accumulated):
        _step(num_micro_batches, case.recipe, sharding, windows, world)
    return held, shape


def _step(num: int, recipe: Recipe, sharding: Any, windows: tuple[Window, ...], world: World) -> None:
    objective = OBJECTIVES[recipe.method](recipe)
    for number in range(num):
        terms = objective.terms(sharding.training_network, windows, world.device)
        sharding.backward(terms.losses.sum() / 1000, is_last=number == num - 1)
        del terms
    sharding.clip_gradients()
    sharding.step(1e-4)


def _windows(case: Case, vocab_size: int) -> tuple[Window, ...]:
    """A micro batch of whole windows of random tokens, each of which has its loss."""
    draw = np.random.default_rng(0)
    length = case.window // EXAMPLES_OF_A_WINDOW
    return tuple(
        tuple(
            Example(
                id=number,
                tokens=draw.integers(0, vocab_size, length, dtype=np.int32),
                loss_mask=np.ones(length, np.uint8),
                side=number % 2,
                reference=-1.0,
            )
            for number in range(EXAMPLES_OF_A_WINDOW)
        )
        for _ in range(case.micro_batch)
    )


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024
