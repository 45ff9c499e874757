"""What models of 1B, 8B and 70B need of each device, by the estimate of `schemas/memory.py`.

python -m bench.training.memory_table        # prints the table of docs/guides/gpu.md
"""

from collections.abc import Iterator, Mapping

from schemas.memory import Setting, Shape, estimate
from schemas.specification import Method, Recipe

LLAMAS: Mapping[str, Shape] = {
    "1B": Shape(1_235_814_400, 16, 2048, 8192, 128_256, 704_512, "llama", num_tables=1),
    "8B": Shape(8_030_261_248, 32, 4096, 14_336, 128_256, 1_310_720, "llama"),
    "70B": Shape(70_553_706_496, 80, 8192, 28_672, 128_256, 6_471_680, "llama"),
}
WINDOW_TOKENS = 4096
DEVICE_BYTES = 80 * 10**9
NUM_DEVICES = (1, 8)
MOST_DEVICES = 64
HEAD = ("model", "method", "one device", "each of eight", "devices of 80 GB")


def table() -> str:
    lines = [HEAD, ("---",) * len(HEAD), *_rows()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _rows() -> Iterator[tuple[str, ...]]:
    for model, shape in LLAMAS.items():
        for method in Method:
            sizes = (_of_both(shape, method, num_devices) for num_devices in NUM_DEVICES)
            yield model, f"`{method}`", *sizes, _least(shape, method)


def _of_both(shape: Shape, method: Method, num_devices: int) -> str:
    kept, recomputed = (_bytes(shape, method, num_devices, recomputed=each) for each in (False, True))
    return f"{kept / 2**30:.1f}, {recomputed / 2**30:.1f}"


def _least(shape: Shape, method: Method) -> str:
    """The smallest power of two."""
    num_devices = 1
    while num_devices <= MOST_DEVICES:
        if _bytes(shape, method, num_devices, recomputed=True) <= DEVICE_BYTES:
            return str(num_devices)
        num_devices *= 2
    return f"more than {MOST_DEVICES}"


def _bytes(shape: Shape, method: Method, num_devices: int, *, recomputed: bool) -> int:
    recipe = Recipe(method=method)
    setting = Setting.of(recipe, num_devices=num_devices, max_seq_length=WINDOW_TOKENS, is_gpu=True)
    return estimate(shape, recipe, setting, gradient_checkpointing=recomputed).total_bytes


if __name__ == "__main__":
    print(table())
