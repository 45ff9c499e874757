"""How well the devices are used."""

import resource

import torch

from schemas.specification import Method
from services.trainer_agent.training.run import Run

# Dense bf16 operations per second, from the makers' data sheets; names as CUDA gives them.
PEAK_FLOPS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
}
FLOPS_PER_TOKEN = {Method.LORA: 4, Method.SFT: 6}
"""Times the weights: a frozen weight needs no gradient of its own, which is a third of the work."""


def peak_flops(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)


def model_flops_utilisation(run: Run, tokens_per_second: float) -> float | None:
    """Attention's own products are not counted."""
    if run.peak_flops is None:
        return None
    per_token = FLOPS_PER_TOKEN[run.order.recipe.method] * run.num_matmul_parameters
    return per_token * tokens_per_second / (run.peak_flops * run.world.size)


def memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
