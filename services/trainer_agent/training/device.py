"""Whether a process has the device that its order names, and whether that device can be trusted with a run."""

import time
from dataclasses import replace

import torch
import torch.distributed as dist

from schemas.base import DeviceKind, FailureClass
from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.failures import TrainingFailed

SIDE = 512
PATTERN_BYTES = {"cpu": 2**20, "cuda": 2**28}
"""Number of bytes of memory that are written and read back, by the type of device."""

SUMMED_BYTES = {"cpu": 2**22, "cuda": 2**26}
"""Size of the tensor that all processes sum, to see how fast they do, by the type of device."""
SUMS = 3


def on_ordered_device(world: World, kind: DeviceKind | None) -> World:
    """Return `world` on a device of the kind; None leaves the one that it chose.

    Raises: TrainingFailed(infra) where the node has no such device: a GPU that died is never replaced by the CPU.
    """
    if kind is None:
        return world
    if kind is DeviceKind.CPU:
        return replace(world, device=torch.device("cpu"))
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if world.local_rank >= num_devices:
        message = (
            f"process {world.local_rank} of the node has no device: found {num_devices} that CUDA can use, expected "
            f"{world.local_size}; is a device or its driver gone?"
        )
        raise TrainingFailed(FailureClass.INFRA, message)
    return replace(world, device=torch.device("cuda", world.local_rank))


def check_device(world: World) -> float | None:
    """Compute, remember and reach the peers, each with a result that is known.

    Returns: bytes per second of a tensor that all processes sum; None of one process.
    Raises: TrainingFailed(infra) naming what came out wrong; what a device raises itself is classified by its text.
    """
    _check_products(world.device)
    _check_memory(world.device)
    _check_peers(world)
    return _summed_per_second(world)


def _check_products(device: torch.device) -> None:
    """Compare products of small whole numbers, which are exact in every type, however they are summed."""
    left = torch.arange(SIDE * SIDE).reshape(SIDE, SIDE) % 7
    right = torch.arange(SIDE * SIDE).reshape(SIDE, SIDE) % 5
    product = left.to(device, torch.float32) @ right.to(device, torch.float32)
    wrong = int((product.cpu() != (left @ right).float()).sum())
    if wrong:
        raise _untrusted(device, f"{wrong} of {SIDE * SIDE} sums of a known matrix product are wrong")


def _check_memory(device: torch.device) -> None:
    size = PATTERN_BYTES[device.type]
    for pattern in (0x55, 0xAA):
        block = torch.full((size,), pattern, dtype=torch.uint8, device=device)
        wrong = int((block != pattern).sum())
        if wrong:
            raise _untrusted(device, f"{wrong} of {size} bytes of memory are not what was written")


def _check_peers(world: World) -> None:
    if world.size == 1:
        return
    ranks = torch.tensor([float(world.rank)], device=world.device)
    dist.all_reduce(ranks)
    expected = world.size * (world.size - 1) / 2
    if float(ranks) != expected:
        raise _untrusted(world.device, f"the sum of all ranks is {float(ranks)}, expected {expected}")


def _summed_per_second(world: World) -> float | None:
    """Return the slowest process's rate: a single slow link slows every step of all."""
    if world.size == 1:
        return None
    summed = torch.zeros(SUMMED_BYTES[world.device.type] // 4, device=world.device)
    seconds = []
    for _ in range(SUMS):
        world.barrier()
        began = time.perf_counter()
        dist.all_reduce(summed)
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
        seconds.append(time.perf_counter() - began)
    # The first one sets connections up.
    [slowest] = world.highest([int(min(seconds[1:]) * 1e9)])
    return SUMMED_BYTES[world.device.type] / (slowest / 1e9)


def _untrusted(device: torch.device, problem: str) -> TrainingFailed:
    return TrainingFailed(
        FailureClass.INFRA, f"device {device} cannot be trusted before the first step: {problem}"
    )
