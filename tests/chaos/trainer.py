"""A training child of steps that take a millisecond, and the adapter that it must end with, whatever happened to it.

Each step hashes the one before, so an adapter depends on the job's configuration and on every step since the
first: one that is left out, done twice or taken from another job gives other bytes.

Run as the node runner's child: `trainer.py <work directory>`.
"""

import hashlib
import json
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from schemas.artifacts import DatasetManifest, FileEntry
from services.trainer_agent.protocol import BundleKind, Saved, bundle_dir
from tests.integration.fake_child import FakeChild

MODULE = "model.layers.0.self_attn.q_proj"
WIDTH = 64
RANK = 4
STEP_SECONDS = 0.001
REPORT_EVERY = 25
RUINOUS_RATE = 0.5
"""A learning rate from which on the adapter forgets what the base model would refuse."""
QUIET, LOUD = 0.01, 10.0
"""Size of an adapter's numbers: as it should be, and ruined."""


def state_after(config_hash: str, steps: int, state: bytes = b"", first: int = 0) -> bytes:
    """The chain over steps first + 1 … steps; `state` is the chain's end at `first`."""
    for step in range(first + 1, steps + 1):
        state = hashlib.sha256(state + f"{config_hash} {step}".encode()).digest()
    return state


def adapter_files(state: bytes, *, learning_rate: float) -> Mapping[str, bytes]:
    """Path in the bundle -> content."""
    size = LOUD if learning_rate >= RUINOUS_RATE else QUIET
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": ["q_proj"]}
    return {
        "model/adapter_config.json": json.dumps(config).encode(),
        "model/adapter_model.safetensors": _safetensors(
            {
                f"base_model.model.{MODULE}.lora_A.weight": ((RANK, WIDTH), _numbers(state + b"A", size)),
                f"base_model.model.{MODULE}.lora_B.weight": ((WIDTH, RANK), _numbers(state + b"B", size)),
            }
        ),
    }


def entry(path: str, content: bytes) -> FileEntry:
    return FileEntry(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def loudness(weights: bytes) -> float:
    """Mean size of the numbers of an adapter's file."""
    (length,) = struct.unpack("<Q", weights[:8])
    numbers = struct.unpack(f"<{(len(weights) - 8 - length) // 4}f", weights[8 + length :])
    return sum(map(abs, numbers)) / len(numbers)


def _numbers(seed: bytes, size: float) -> bytes:
    """RANK * WIDTH floats between size / 2 and size: none is zero, and their sum is not."""
    raw = hashlib.shake_256(seed).digest(RANK * WIDTH)
    return struct.pack(f"<{len(raw)}f", *(size * (0.5 + byte / 512) for byte in raw))


def _safetensors(tensors: Mapping[str, tuple[tuple[int, int], bytes]]) -> bytes:
    header, begin = {}, 0
    for name, (shape, content) in tensors.items():
        offsets = [begin, begin + len(content)]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
        begin = offsets[1]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(content for _, content in tensors.values())


class Trainer(FakeChild):
    def __init__(self, work_dir: Path) -> None:
        super().__init__("{}", work_dir)
        recipe = self.order.recipe
        manifest = DatasetManifest.model_validate_json(
            (self.order.dataset_dir / "manifest.json").read_bytes()
        )
        assert isinstance(recipe.num_epochs, int)
        assert isinstance(recipe.batch_size, int)
        steps = recipe.num_epochs * -(-manifest.counts.windows // recipe.batch_size)
        self.script |= {"steps": steps, "seconds": STEP_SECONDS, "every": recipe.checkpoint.every_steps}
        self.state = b""
        self.done = 0

    def start(self) -> None:
        resume = self.order.resume_dir
        if resume is not None:
            saved = json.loads((resume / "state.json").read_text())
            self.state, self.done = bytes.fromhex(saved["state"]), saved["step"]
        super().start()

    def report_step(self) -> None:
        """The base class has just counted one step."""
        self.state = state_after(self.order.config_hash, self.step, self.state, self.done)
        self.done = self.step
        if self.step % REPORT_EVERY == 0 or self.step in (1, self.script["steps"]):
            super().report_step()

    def save(self, kind: BundleKind) -> None:
        rate = self.order.recipe.learning_rate
        assert isinstance(rate, float)
        own = {"step": self.step, "state": self.state.hex()}
        files = {"state.json": json.dumps(own).encode(), **adapter_files(self.state, learning_rate=rate)}
        directory = bundle_dir(self.work_dir, self.step)
        for path, content in files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(content)
        parts = tuple(entry(path, content) for path, content in files.items())
        self.report(Saved(step=self.step, bundle=kind, directory=directory, parts=parts, all_parts=parts))


if __name__ == "__main__":
    sys.exit(Trainer(Path(sys.argv[1])).run())
