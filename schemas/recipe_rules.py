"""What a recipe asks for that cannot be on any base: choices that exclude each other, and numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from schemas.base import DeviceKind
from schemas.numbers import plural
from schemas.specification import (
    DEFAULT_DECAY_RATIO,
    WEIGHTS_OF_METHOD,
    JobSpec,
    LoraSpec,
    Method,
    OptimizerName,
    Recipe,
    Resources,
    StageSpec,
    Weights,
    trains_either,
)

MIN_STEPS_OF_INTERVAL = 10
MIN_SECONDS_OF_INTERVAL = 5
"""Least seconds from one periodic bundle to the next; the number above is the least of steps."""
SHARDED: frozenset[OptimizerName] = frozenset({"adamw"})
"""Optimizers of weights that are spread over several devices."""

SUPERVISED: Mapping[Weights, Method] = {"adapter": Method.LORA, "full": Method.SFT}
"""The method that trains such weights and no others: what it cannot train, no method can."""
WORDS: Mapping[Weights, str] = {"adapter": "an adapter", "full": "all weights"}


@dataclass(frozen=True)
class Refusal:
    code: str
    """The rule, as a stable word for machines."""
    message: str
    """The configuration, what is expected, and the nearest configuration that works."""
    param: str

    def of_stage(self, index: int) -> "Refusal":
        """Return the refusal with the place of a later stage's recipe and files in the specification."""
        if index == 0 or self.param.split(".")[0] not in StageSpec.model_fields:
            return self
        prefix = f"later_stages[{index - 1}]"
        return replace(self, message=f"{prefix}: {self.message}", param=f"{prefix}.{self.param}")


def check_choices(spec: JobSpec) -> Refusal | None:
    """Return which choices of the recipe exclude each other, or None."""
    recipe = spec.recipe
    return (
        _of_nodes(spec.resources)
        or _of_weights(spec)
        or _of_quantization(recipe)
        or _of_preferences(recipe)
        or _of_adapter(recipe.lora)
        or _of_sharding(spec)
        or _of_optimizer(spec)
        or _of_compiling(spec)
    )


def check_numbers(spec: JobSpec) -> Refusal | None:
    """Return which numbers of the recipe do not go together, or None."""
    return _of_schedule(spec.recipe) or _of_batch(spec) or _of_checkpoints(spec) or _of_validations(spec)


def _of_nodes(asked: Resources) -> Refusal | None:
    if asked.min_nodes is None or asked.min_nodes < asked.nodes:
        return None
    message = (
        f"resources.min_nodes is {asked.min_nodes}, and resources.nodes, the most, is {asked.nodes}; expected fewer. "
        "Nearest that works: leave min_nodes out, which is exactly as many as nodes"
    )
    return Refusal("min_nodes_not_less", message, "resources.min_nodes")


def _of_adapter(lora: LoraSpec) -> Refusal | None:
    """Refuse, before anything is trained, an adapter that cannot be served: it could not be registered either."""
    if lora.use_dora:
        message = (
            "recipe.lora.use_dora is true, and vLLM serves no DoRA adapter, so that the registry takes none; "
            "expected false. Nearest that works: use_rslora true with a larger rank"
        )
        return Refusal("adapter_not_served", message, "recipe.lora.use_dora")
    if lora.modules_to_save:
        message = (
            f"recipe.lora.modules_to_save is {', '.join(lora.modules_to_save)}, and vLLM serves no adapter with "
            "whole modules, so that the registry takes none; expected none. Nearest that works: method sft, or cpt "
            "with weights full, which train all weights"
        )
        return Refusal("adapter_not_served", message, "recipe.lora.modules_to_save")
    return None


def _of_sharding(spec: JobSpec) -> Refusal | None:
    """Refuse what FSDP2 would ignore."""
    sharding = spec.recipe.sharded
    if sharding.library == "deepspeed":
        return None
    offload = "auto" if sharding.offload_optimizer_auto else sharding.offload_optimizer
    if sharding.stage is not None:
        name, value, where = "stage", str(sharding.stage), ""
    elif offload and spec.resources.num_devices == 1:
        name, value, where = "offload_optimizer", str(offload), " on 1 device"
    else:
        return None
    message = (
        f"recipe.sharding.{name} is {value}, and library fsdp2 would ignore it{where}; leave it "
        f"out. Nearest that works: library deepspeed with the same {name}"
    )
    return Refusal("sharding_ignored", message, f"recipe.sharding.{name}")


def _of_optimizer(spec: JobSpec) -> Refusal | None:
    name, request, library = spec.recipe.optimizer, spec.resources, spec.recipe.sharded.library
    if (request.num_devices == 1 and library == "fsdp2") or name in SHARDED:
        return None
    reason = (
        "Muon needs each matrix whole"
        if name == "muon"
        else "bitsandbytes updates whole tensors, whose blocks and scales do not survive another number of devices"
    )
    where = "with library deepspeed" if library == "deepspeed" else f"on {request.num_devices} devices"
    alone = f"optimizer {name} on 1 node with 1 device" + (
        " and library fsdp2" if library == "deepspeed" else ""
    )
    message = (
        f"recipe.optimizer {name} {where}: weights are sharded there, and {reason}. "
        f"Nearest that works: optimizer adamw with the same resources, or {alone}"
    )
    return Refusal("optimizer_not_sharded", message, "recipe.optimizer")


def _of_compiling(spec: JobSpec) -> Refusal | None:
    if not spec.recipe.compile:
        return None
    device, library = spec.resources.device, spec.recipe.sharded.library
    if device is not DeviceKind.CUDA:
        message = (
            f"recipe.compile is true and resources.device is {device or 'left out'}; layers are compiled on GPUs "
            "alone. Nearest that works: resources.device cuda, or no recipe.compile"
        )
        return Refusal("compile_not_on_device", message, "recipe.compile")
    if library == "deepspeed":
        message = (
            "recipe.compile is true and recipe.sharding.library is deepspeed, which gathers weights by hooks within "
            "the layers, where a compiled layer has none. Nearest that works: library fsdp2, or no recipe.compile"
        )
        return Refusal("compile_not_sharded", message, "recipe.compile")
    return None


def _of_schedule(recipe: Recipe) -> Refusal | None:
    if recipe.schedule != "wsd":
        if recipe.decay_ratio is None:
            return None
        message = (
            f"recipe.decay_ratio is {recipe.decay_ratio:g}, and schedule {recipe.schedule} would ignore it; expected "
            "schedule wsd with it. Nearest that works: schedule wsd, or no decay_ratio"
        )
        return Refusal("decay_ignored", message, "recipe.decay_ratio")
    decay = recipe.decay_ratio or DEFAULT_DECAY_RATIO
    if recipe.warmup_ratio + decay <= 1.0 + 1e-9:
        return None
    message = (
        f"recipe.warmup_ratio {recipe.warmup_ratio:g} and decay_ratio {decay:g} are more than all steps, expected a "
        f"sum of at most 1. Nearest that works: decay_ratio {1 - recipe.warmup_ratio:.3g}"
    )
    return Refusal("schedule_too_long", message, "recipe.decay_ratio")


def _of_weights(spec: JobSpec) -> Refusal | None:
    recipe = spec.recipe
    if recipe.kind not in WEIGHTS_OF_METHOD[recipe.method]:
        message = (
            f"recipe.weights is {recipe.weights}, and method {recipe.method} does not train {WORDS[recipe.kind]}. "
            f"Nearest that works: method {SUPERVISED[recipe.kind]}, or method {recipe.method} without recipe.weights"
        )
        return Refusal("weights_not_of_method", message, "recipe.weights")
    if recipe.kind == "full" and recipe.lora != LoraSpec():
        adapter = "weights adapter" if "adapter" in WEIGHTS_OF_METHOD[recipe.method] else "method lora"
        message = (
            f"method {recipe.method} trains all weights and would ignore recipe.lora; leave it out. "
            f"Nearest that works: {adapter} with the same recipe.lora"
        )
        return Refusal("lora_ignored", message, "recipe.lora")
    return None


def _of_quantization(recipe: Recipe) -> Refusal | None:
    """Refuse quantization for learning answers, which qlora does, or where 4 bits would be trained themselves."""
    if recipe.quantization is None:
        return None
    asked = f"recipe.quantization is {recipe.quantization}"
    if trains_either(recipe.method):
        if recipe.kind == "adapter":
            return None
        message = (
            f"{asked}, and recipe.weights full trains all weights, which have too few values in 4 bits. Nearest that "
            f"works: method {recipe.method} with weights adapter and the same quantization"
        )
    elif recipe.method is Method.QLORA:
        message = (
            f"{asked}, which method qlora means already. Nearest that works: leave recipe.quantization out"
        )
    else:
        message = (
            f"{asked}, and method {recipe.method} trains on a base as it is; expected none. Nearest that works: "
            "method qlora without recipe.quantization"
        )
    return Refusal("quantization_not_of_method", message, "recipe.quantization")


def _of_preferences(recipe: Recipe) -> Refusal | None:
    """Refuse what of recipe.dpo would be ignored."""
    if recipe.method is not Method.DPO and recipe.dpo is not None:
        message = (
            f"method {recipe.method} learns no preferences and would ignore recipe.dpo; leave it out. "
            "Nearest that works: method dpo with the same recipe.dpo"
        )
        return Refusal("dpo_ignored", message, "recipe.dpo")
    asked = recipe.preferences
    if asked.gamma is not None and asked.loss != "simpo":
        message = (
            f"recipe.dpo.loss {asked.loss} has no target margin and would ignore recipe.dpo.gamma "
            f"{asked.gamma:g}; leave it out. Nearest that works: recipe.dpo.loss simpo with the same gamma"
        )
        return Refusal("gamma_ignored", message, "recipe.dpo.gamma")
    return None


def _of_batch(spec: JobSpec) -> Refusal | None:
    """Refuse fewer windows in a step than devices, some of which would have no work at every step."""
    batch, request = spec.recipe.batch_size, spec.resources
    if batch == "auto" or batch >= request.num_devices:
        return None
    nodes = min(request.nodes, batch)
    message = (
        f"batch_size {batch} leaves {request.num_devices - batch} of {request.num_devices} devices without work at "
        f"every step. Nearest that works: batch_size {request.num_devices} (or auto) with the same resources, or "
        f"batch_size {batch} on {plural(nodes, 'node')} with {plural(batch // nodes, 'device')} each"
    )
    return Refusal("batch_too_small", message, "recipe.batch_size")


def _of_checkpoints(spec: JobSpec) -> Refusal | None:
    """Refuse bundles without a pause between them: each is an upload, a verification and messages."""
    interval = spec.recipe.checkpoint
    for name, least in (("every_steps", MIN_STEPS_OF_INTERVAL), ("every_seconds", MIN_SECONDS_OF_INTERVAL)):
        if (value := getattr(interval, name)) < least:
            message = f"{name} is {value:g}, expected {least} at least. Nearest that works: {name} {least}"
            return Refusal("bundles_too_often", message, f"recipe.checkpoint.{name}")
    return None


def _of_validations(spec: JobSpec) -> Refusal | None:
    recipe = spec.recipe
    asked = {
        "early_stopping": recipe.early_stopping is not None,
        "load_best_model_at_end": recipe.load_best_model_at_end,
        "eval_every_steps": recipe.eval_every_steps is not None,
    }
    name = next((name for name, is_asked in asked.items() if is_asked), None)
    if name is None:
        return None
    if spec.validation_file is None:
        message = (
            f"recipe.{name} goes by the loss on a validation file, and the job has none; expected validation_file. "
            f"Nearest that works: the same job with a validation_file, or without {name}"
        )
        return Refusal("no_validation_file", message, f"recipe.{name}")
    every = recipe.eval_every_steps
    if recipe.load_best_model_at_end and every is not None and every < MIN_STEPS_OF_INTERVAL:
        message = (
            f"eval_every_steps is {every}, and with load_best_model_at_end a checkpoint is written wherever the loss "
            f"is the lowest so far; expected {MIN_STEPS_OF_INTERVAL} at least. Nearest that works: eval_every_steps "
            f"{MIN_STEPS_OF_INTERVAL}"
        )
        return Refusal("bundles_too_often", message, "recipe.eval_every_steps")
    return None
