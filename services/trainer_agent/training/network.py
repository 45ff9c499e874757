"""The model of a job: base weights, an adapter where the method wants one, ready to be trained."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.tuners.lora import model as peft_layers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from schemas.base import FailureClass
from schemas.specification import LoraSpec, Recipe
from services.trainer_agent.training.attention import fastest
from services.trainer_agent.training.failures import TrainingFailed, classify, describe
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.places import Places
from services.trainer_agent.training.quantized import loading_options, num_values
from services.trainer_agent.training.rows import build_empty, stand_in_for
from shared.causal_models import converts_names, plain_linears
from shared.processes.loading import without_bitsandbytes


def build_network(
    recipe: Recipe, weights_dir: Path, device: torch.device, *, in_rows: bool = False
) -> TokenLosses:
    """Build the network in host memory, or a base in 4 bits on `device`, on which it is trained. Adapters start from
    the recipe's seed, the same on every rank.

    in_rows: where it can be read so, the base has no values before it is sharded.
    """
    dtype = compute_dtype(recipe, device)
    # All weights are trained in float32; a frozen base may lie in the smaller type.
    options: dict[str, Any] = loading_options(dtype, device) if recipe.is_quantized else {}
    options["dtype"] = dtype if recipe.kind == "adapter" else torch.float32
    base, unread = _load_base(
        weights_dir, options, lambda config: fastest(config, device, dtype), in_rows=in_rows
    )
    torch.manual_seed(recipe.seed)
    model = _with_adapter(base, recipe) if recipe.kind == "adapter" else base
    return TokenLosses(model, compute_dtype=dtype, unread=unread).train()


def compute_dtype(recipe: Recipe, device: torch.device) -> torch.dtype:
    if recipe.precision != "auto":
        return torch.bfloat16 if recipe.precision == "bfloat16" else torch.float32
    has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if has_bfloat16 else torch.float32


def trainable(network: TokenLosses) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by the name they have in the model file."""
    return {
        file_name(name): parameter
        for name, parameter in network.model.named_parameters()
        if parameter.requires_grad
    }


def tables(network: TokenLosses) -> list[torch.Tensor]:
    """Return the weights of the input and of the head, a row for each token."""
    causal_lm = network.causal_lm
    return [causal_lm.get_input_embeddings().weight, causal_lm.get_output_embeddings().weight]


def file_name(parameter_name: str) -> str:
    """Return a parameter's name in the file: PEFT leaves out the adapter's own name, `default`."""
    return parameter_name.replace(".default.", ".")


def transformer_blocks(network: TokenLosses) -> Iterator[nn.Module]:
    """Return the repeated layers, which are what is sharded one by one."""
    block_types = set(network.causal_lm._no_split_modules or ())  # noqa: SLF001 transformers has no public name for it
    return (module for module in network.causal_lm.modules() if type(module).__name__ in block_types)


def compile_blocks(network: TokenLosses) -> None:
    """Compile each repeated layer when it is first called. One program for all shapes: a resumed run meets them in
    another order than the run before, and must compute the same bits."""
    for block in transformer_blocks(network):
        block.compile(dynamic=True)


def num_matmul_parameters(network: TokenLosses) -> int:
    """Count the base weights that each token is multiplied with: all but an input table that is not also the head."""
    causal_lm = network.causal_lm
    adapter = sum(int(p.numel()) for n, p in causal_lm.named_parameters() if ".lora_" in n)
    table = causal_lm.get_input_embeddings().weight
    head = causal_lm.get_output_embeddings().weight
    unused = 0 if table is head else int(table.numel())
    return num_values(causal_lm) - adapter - unused


def _load_base(
    base_dir: Path, options: dict[str, Any], attention: Callable[[Any], str], *, in_rows: bool
) -> tuple[Any, Places]:
    """Return the model, and what of it is still to be read.

    Raises: TrainingFailed(user) for files that transformers cannot make a model of.
    """
    try:
        config = AutoConfig.from_pretrained(base_dir, local_files_only=True)
        options["attn_implementation"] = attention(config)
        if in_rows and (empty := build_empty(config, base_dir, options)) is not None:
            return empty
        whole = AutoModelForCausalLM.from_pretrained(
            base_dir, local_files_only=True, use_safetensors=True, **options
        )
    except Exception as error:
        if classify(error) is not FailureClass.INTERNAL:
            raise
        message = f"the base model cannot be loaded: {describe(error)}"
        raise TrainingFailed(FailureClass.USER, message) from error
    return whole, {}


def _with_adapter(base: Any, recipe: Recipe) -> Any:
    lora = recipe.lora
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=_as_integer(lora.lora_alpha),
        lora_dropout=lora.dropout,
        use_rslora=lora.use_rslora,
        target_modules=_targets(base, lora),
        task_type="CAUSAL_LM",
    )
    with nullcontext() if recipe.is_quantized else without_bitsandbytes(peft_layers), _stood_in_for(base):
        model = get_peft_model(base, config)
    for module in model.modules():
        if isinstance(module, LoraLayer):
            # Autocast makes products in the smaller type: to float32 and back would be two passes for equal bits.
            module.cast_input_dtype_enabled = False
    return model


@contextmanager
def _stood_in_for(base: Any) -> Iterator[None]:
    """Let each frozen parameter on `meta` be one value in host memory, whatever its shape: PEFT puts adapters where
    their layers are, and on `meta` they would lose what was drawn for them."""
    places = [
        (m, name, p) for m in base.modules() for name, p in m.named_parameters(recurse=False) if p.is_meta
    ]
    for module, name, parameter in places:
        setattr(module, name, stand_in_for(parameter).requires_grad_(False))
    try:
        yield
    finally:
        for module, name, parameter in places:
            setattr(module, name, parameter.requires_grad_(False))


def _targets(base: Any, lora: LoraSpec) -> str | list[str]:
    """Return what PEFT adapts. Raises: TrainingFailed(user) for a name or pattern that no layer has."""
    # By names alone PEFT would add experts and routers, for which files of adapters have no common form.
    linears = list(plain_linears(base))
    if isinstance(lora.target_modules, str):
        return linears if converts_names(base) else lora.target_modules
    named = {
        pattern: [name for name in linears if _ends_with(name, pattern)] for pattern in lora.target_modules
    }
    unknown = [pattern for pattern, names in named.items() if not names]
    if unknown or not named:
        names = ", ".join(sorted({name.rpartition(".")[2] for name in linears}))
        message = (
            f"recipe.lora.target_modules: no plain linear layer is named {', '.join(unknown) or 'by it'}, expected "
            f"some of {names}"
        )
        raise TrainingFailed(FailureClass.USER, message)
    chosen = {name for names in named.values() for name in names}
    return [name for name in linears if name in chosen]


def _ends_with(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def _as_integer(number: float) -> int | float:
    """Return a whole number as an integer, which readers of adapter configurations expect."""
    return int(number) if number.is_integer() else number
