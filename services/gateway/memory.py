"""What a job needs of a device's memory, compared with what pools have, and shown with its base model. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import floor
from typing import Self

from schemas.base import Bytes, Count, DeviceKind, Value
from schemas.capabilities import BaseCapabilities
from schemas.fitting import choose, least, needed
from schemas.memory import MemoryEstimate, Setting, Shape, bundle_bytes, estimate
from schemas.node import PoolCapacityChanged
from schemas.specification import JobSpec, Method, Recipe, trains_either
from services.gateway.model import BaseModelDetail, JobMemory

DEFAULT_WINDOW_TOKENS = 4096
LEAST_WINDOW_TOKENS = 512
DOUBT = 1.1
"""A job is refused where its estimate is more than so many times what a device has."""

STORED_BYTES_PER_SECOND = 2**28
"""Assumed rate at which a node writes a bundle to its disk and on to S3: nobody knows it before there is a node."""


@dataclass(frozen=True)
class Base:
    """What the gateway knows of a base model's size."""

    capabilities: BaseCapabilities
    num_parameters: int
    context_tokens: int

    @classmethod
    def of(cls, detail: BaseModelDetail | None) -> Self | None:
        """Return what is known of the base; None if it was registered before its shape was looked at."""
        if detail is None or detail.capabilities is None:
            return None
        return cls(detail.capabilities, detail.num_parameters, detail.context_tokens)

    @property
    def shape(self) -> Shape:
        return Shape.of(self.capabilities, num_parameters=self.num_parameters)

    @property
    def max_seq_length(self) -> int:
        """Window in tokens where a policy says `auto`."""
        return min(DEFAULT_WINDOW_TOKENS, self.context_tokens)


def of_job(spec: JobSpec, base: Base, *, max_seq_length: int, is_gpu: bool) -> MemoryEstimate:
    """Estimate the least memory that the recipe allows."""
    setting = _setting(spec, max_seq_length, is_gpu=is_gpu)
    return needed(base.shape, least(spec.recipe, num_devices=setting.num_devices), setting)


def chosen_by(
    pools: tuple[PoolCapacityChanged, ...], spec: JobSpec, base: Base, *, max_seq_length: int
) -> JobMemory:
    """Estimate with what the training process would choose on the GPUs of the pool with the largest ones. A batch
    size of `auto` is not known yet: it counts as one window for each device.
    """
    known = [pool for pool in pools if pool.device_memory_bytes is not None and is_gpu(pool)]
    if not known:
        at_least = of_job(spec, base, max_seq_length=max_seq_length, is_gpu=True)
        return JobMemory(max_seq_length=max_seq_length, **at_least.model_dump())
    largest = max(known, key=_device_bytes)
    setting = _setting(spec, max_seq_length, is_gpu=True)
    chosen = choose(base.shape, spec.recipe, setting, device_bytes=_device_bytes(largest))
    return JobMemory(
        max_seq_length=max_seq_length,
        pool=largest.pool,
        **needed(base.shape, chosen, setting).model_dump(),
    )


def _setting(spec: JobSpec, max_seq_length: int, *, is_gpu: bool) -> Setting:
    return Setting.of(
        spec.recipe, num_devices=spec.resources.num_devices, max_seq_length=max_seq_length, is_gpu=is_gpu
    )


class MethodMemory(Value):
    """What each device needs by estimate, on one GPU with the default recipe."""

    kept_bytes: Bytes
    """Bytes that are needed with all activations kept."""
    recomputed_bytes: Bytes
    """Bytes that are needed with activations computed again."""
    max_seq_length: Count
    """Length of a window."""


def of_base(base: Base) -> dict[str, MethodMemory]:
    """Return the estimates by method."""
    return {
        method.value: MethodMemory(
            kept_bytes=_of_method(base, method, recomputed=False),
            recomputed_bytes=_of_method(base, method, recomputed=True),
            max_seq_length=base.max_seq_length,
        )
        for method in sorted(Method)
    }


def why_too_large(spec: JobSpec, base: Base, pools: tuple[PoolCapacityChanged, ...], window: int) -> str:
    """Empty where the job fits into one of the pools, or one of them does not say what it has."""
    sizes = [pool.device_memory_bytes for pool in pools]
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return ""
    if any(_share(spec, base, pool, window) <= DOUBT for pool in pools):
        return ""
    largest = max(pools, key=_device_bytes)
    needed = of_job(spec, base, max_seq_length=window, is_gpu=is_gpu(largest))
    nearest = next(
        (words for words, fits in _nearer(spec, base, largest, window) if fits), "a smaller base model"
    )
    return (
        f"{spec.recipe.method} of {spec.base_model} needs about {_gib(needed.total_bytes)} of each device, pool "
        f"{largest.pool} has {_gib(_device_bytes(largest))}. Nearest that works: {nearest}"
    )


def least_gib(spec: JobSpec, base: Base, windows: Iterable[int]) -> float:
    """Return the least memory of a GPU, in GiB, with which no stage would be refused.

    windows: of each stage's dataset, in tokens.
    """
    sizes = (
        of_job(stage, base, max_seq_length=window, is_gpu=True).total_bytes
        for stage, window in zip(spec.by_stage, windows, strict=True)
    )
    return floor(max(sizes) / DOUBT / 2**30 * 10) / 10


def why_not_saved_in_time(spec: JobSpec, base: Base) -> str:
    """Empty where a bundle is stored within the notice that a node gets before it is taken back."""
    asked, size = spec.resources, bundle_bytes(base.shape, spec.recipe)
    seconds = size / asked.nodes / STORED_BYTES_PER_SECOND
    if seconds <= asked.grace_seconds:
        return ""
    return (
        f"resources.grace_seconds is {asked.grace_seconds:.0f}, and a bundle of {spec.recipe.method} of "
        f"{spec.base_model} has about {_gib(size)}: {seconds:.0f} seconds where each node stores "
        f"{STORED_BYTES_PER_SECOND // 2**20} MiB a second. Where a node is taken back, what was trained since the "
        "last periodic bundle may be trained again"
    )


def _nearer(spec: JobSpec, base: Base, pool: PoolCapacityChanged, window: int) -> Iterator[tuple[str, bool]]:
    """Step by step to what needs less, each with all before it, and whether it fits."""
    changes: dict[str, object] = {}
    for param, value, smaller, tokens in _smaller(spec, base, pool, window):
        changes[param] = value
        words = ", ".join(f"{name} {changed}" for name, changed in changes.items())
        yield words, _share(smaller, base, pool, tokens) <= 1.0


def _smaller(
    spec: JobSpec, base: Base, pool: PoolCapacityChanged, window: int
) -> Iterator[tuple[str, object, JobSpec, int]]:
    if not spec.recipe.gradient_checkpointing and not spec.recipe.gradient_checkpointing_auto:
        spec = _with_recipe(spec, gradient_checkpointing=True)
        yield "recipe.gradient_checkpointing", "true", spec, window
    if spec.recipe.micro_batch_size > 1:
        spec = _with_recipe(spec, micro_batch_size=1)
        yield "recipe.micro_batch_size", 1, spec, window
    if spec.resources.devices_per_node < pool.devices_per_node:
        resources = spec.resources.model_copy(update={"devices_per_node": pool.devices_per_node})
        spec = spec.model_copy(update={"resources": resources})
        yield "resources.devices_per_node", pool.devices_per_node, spec, window
    if spec.recipe.kind == "full":
        param, value = (
            ("weights", "adapter") if trains_either(spec.recipe.method) else ("method", Method.LORA)
        )
        spec = _with_recipe(spec, **{param: value})
        yield f"recipe.{param}", str(value), spec, window
    if not spec.recipe.is_quantized and not base.capabilities.converts_names:
        is_lora = spec.recipe.method is Method.LORA
        param, value = ("method", Method.QLORA) if is_lora else ("quantization", "nf4")
        spec = _with_recipe(spec, **{param: value})
        yield f"recipe.{param}", str(value), spec, window
    while window > LEAST_WINDOW_TOKENS:
        window //= 2
        yield "policy.max_seq_length", window, spec, window


def _with_recipe(spec: JobSpec, **changes: object) -> JobSpec:
    return spec.model_copy(update={"recipe": spec.recipe.model_copy(update=changes)})


def _share(spec: JobSpec, base: Base, pool: PoolCapacityChanged, window: int) -> float:
    """Return the part that the job needs of the memory of the pool's devices, which must be known."""
    needed = of_job(spec, base, max_seq_length=window, is_gpu=is_gpu(pool))
    return needed.total_bytes / (pool.device_memory_bytes or 1)


def _device_bytes(pool: PoolCapacityChanged) -> int:
    return pool.device_memory_bytes or 0


def is_gpu(pool: PoolCapacityChanged) -> bool:
    """Return whether it has GPUs, as pools do that do not say."""
    return pool.device is not DeviceKind.CPU


def _of_method(base: Base, method: Method, *, recomputed: bool) -> int:
    recipe = Recipe(method=method)
    setting = Setting.of(recipe, num_devices=1, max_seq_length=base.max_seq_length, is_gpu=True)
    return estimate(base.shape, recipe, setting, gradient_checkpointing=recomputed).total_bytes


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
