"""One training process among all of them: who it is, and what all agree on."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
MAX_TEXT_BYTES = 1024 * 1024


@dataclass(frozen=True)
class World:
    """The place of this process among all. Numbers travel over gloo from host memory, without waiting for a GPU."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    """Number of processes on this node; every node has as many."""
    device: torch.device

    @property
    def node_ranks(self) -> range:
        """Global ranks of this node."""
        first = self.rank - self.local_rank
        return range(first, first + self.local_size)

    def highest(self, values: Sequence[int]) -> list[int]:
        """Return each value's maximum over all ranks."""
        return [int(value) for value in self._reduced(values, dist.ReduceOp.MAX)]

    def total(self, values: Sequence[float]) -> list[float]:
        """Return each value's sum over all ranks."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def gathered(self, text: str) -> list[str]:
        """Return every rank's text, by rank, sent as bytes: unpickling a peer's object would run what it wrote.

        Raises: ValueError on every rank where the text of one is too long.
        """
        if self.size == 1:
            return [text]
        mine = text.encode()
        lengths = [int(length) for length in self._gathered(torch.tensor([len(mine)]))]
        if not 0 <= min(lengths) <= max(lengths) <= MAX_TEXT_BYTES:
            raise ValueError(f"texts of ranks have {lengths} bytes, expected at most {MAX_TEXT_BYTES}")
        padded = torch.frombuffer(bytearray(mine.ljust(max(lengths) + 1, b"\0")), dtype=torch.uint8)
        texts = zip(self._gathered(padded), lengths, strict=True)
        return [bytes(text[:length].tolist()).decode() for text, length in texts]

    def barrier(self) -> None:
        self.highest([0])

    def _gathered(self, own: Tensor) -> list[Tensor]:
        """Return every rank's tensor, by rank; all have one shape and dtype."""
        tensors = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(tensors, own)
        return tensors

    def _reduced(self, values: Sequence[float], operation: Any) -> list[float]:
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, operation)
        return [float(value) for value in tensor]


def own_world(environment: Mapping[str, str]) -> World:
    """Return the place that torchrun gave this process, or of one alone. Its order may name another device."""
    local_rank = int(environment.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    return World(
        rank=int(environment.get("RANK", "0")),
        size=int(environment.get("WORLD_SIZE", "1")),
        local_rank=local_rank,
        local_size=int(environment.get("LOCAL_WORLD_SIZE", "1")),
        device=device,
    )


@contextmanager
def joined(world: World, *, even_alone: bool) -> Iterator[None]:
    """Meet the other processes and leave together. A process without others does so if it is asked to."""
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    if world.size == 1 and not even_alone:
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if world.device.type == "cuda" else "gloo"
    if world.size == 1:
        # There is no address to meet at.
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    else:
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    yield
    # Not reached after an error: the peers may be gone, and leaving together would wait for them.
    world.barrier()
    dist.destroy_process_group()
