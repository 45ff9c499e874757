"""How well the devices are used."""

import resource

import torch

from schemas.resolution import flops_per_token
from services.trainer_agent.training.run import Run

# Dense bf16 operations per second, from the makers' data sheets; names as CUDA gives them, without the maker's.
# Of a product that is not here no share is reported: A10 and A10G, H100 and its PCIe form differ by a third.
PEAK_FLOPS = {
    "H200": 989e12,
    "H100 80GB HBM3": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "A100-SXM4-40GB": 312e12,
    "A100-SXM4-80GB": 312e12,
    "A100-PCIE-40GB": 312e12,
    "A100 80GB PCIe": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "A10G": 70e12,
}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def device_memory_bytes(device: torch.device) -> int | None:
    """Return all memory that the device has; None on a CPU, which shares its memory with everyone."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None


def peak_flops(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    return peak_flops_of(device_name(device))


def peak_flops_of(product: str) -> float | None:
    return PEAK_FLOPS.get(product.removeprefix("NVIDIA "))


def model_flops_utilisation(run: Run, tokens_per_second: float) -> float | None:
    """Return the share of the devices' peak used, attention's own products left out; None without a known peak."""
    if run.peak_flops is None:
        return None
    per_token = flops_per_token(run.order.recipe, num_weights=run.num_matmul_parameters)
    return per_token * tokens_per_second / (run.peak_flops * run.world.size)


def memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
