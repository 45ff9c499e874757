"""A frozen base whose linear layers are kept in 4 bits (QLoRA: Dettmers et al., 2023); its adapter is as any other.

Each weight becomes one of 16 levels of a normal distribution (NF4) times the scale of its block of 64, and the scales
are quantised in turn (double quantisation): 4.13 bits for a weight. The head, the input table and norms stay as they
are. Products are computed in the recipe's type, with the weights that the levels represent.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.functional import linear

from schemas.base import FailureClass
from services.trainer_agent.training.base_files import tensor_places
from services.trainer_agent.training.failures import TrainingFailed


def loading_options(compute_dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Return transformers' options for loading: it quantises each tensor once it has read it, on the device itself. A
    CPU takes minutes where a GPU takes seconds."""
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute_dtype,
        # Sharding casts parameters of floating types; bytes it leaves as they are.
        bnb_4bit_quant_storage=torch.uint8,
    )
    return {"quantization_config": config, "device_map": {"": device}}


def four_bit_layers(network: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the layers by name; a layer with an adapter is named without its wrapper."""
    for name, module in network.named_modules():
        if is_four_bit(module):
            yield name.removesuffix(".base_layer"), module


def is_four_bit(module: nn.Module) -> bool:
    return getattr(module, "quant_state", None) is not None


def num_values(network: nn.Module) -> int:
    """Count the values of all parameters: two values of 4 bits share a byte."""
    packed = {
        id(layer.weight): layer.in_features * layer.out_features for _, layer in four_bit_layers(network)
    }
    return sum(packed.get(id(each), each.numel()) for each in network.parameters())


def keep_in_train_mode(network: nn.Module) -> None:
    """Keep 4-bit layers in training mode, which changes nothing in them. In evaluation mode bitsandbytes packs
    weights in another way on some CPUs, which sharding and training do not know and which fails for some widths."""
    for _, layer in four_bit_layers(network):
        layer.training = True


def move_scales(network: nn.Module, device: torch.device) -> None:
    """Move the scales to the device. They are no parameters: what moves these leaves them behind."""
    for _, layer in four_bit_layers(network):
        layer.quant_state.to(device)


@dataclass(frozen=True)
class QuantizedBase:
    sha256: str
    """Digest over all that the 4-bit layers are made of, before they are sharded."""
    places: Mapping[str, tuple[Path, str]]
    """File and tensor of each layer that has its weights as they were before."""


def quantized_base(causal_lm: Any, base_dir: Path) -> QuantizedBase | None:
    """Return None for a base of plain layers. Raises TrainingFailed(user) where the files name weights otherwise."""
    layers = dict(four_bit_layers(causal_lm))
    if not layers:
        return None
    files = tensor_places(base_dir)
    prefix = f"{causal_lm.base_model_prefix}."
    names = {layer: f"{layer}.weight" for layer in layers}
    names = {layer: name if name in files else name.removeprefix(prefix) for layer, name in names.items()}
    unknown = sorted(layer for layer, name in names.items() if name not in files)
    if unknown:
        message = (
            f"base model {type(causal_lm).__name__}: its files have no tensor for the layer {unknown[0]}, expected "
            f"{names[unknown[0]]}. Nearest that works: method lora instead of qlora, else no recipe.quantization"
        )
        raise TrainingFailed(FailureClass.USER, message)
    return QuantizedBase(_sha256(layers), {layer: (files[name], name) for layer, name in names.items()})


def _sha256(layers: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(layers):
        state = layers[name].quant_state
        digest.update(name.encode())
        for tensor in (layers[name].weight, state.absmax, state.offset, state.state2.absmax):
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def as_served(causal_lm: Any, base: QuantizedBase) -> Iterator[None]:
    """Let the layers compute with the weights of the base's files, on which the adapter is served: each is read again
    for each product, so that never the whole is beside the quantised one."""
    layers = dict(four_bit_layers(causal_lm))
    files = {path: safe_open(path, framework="pt") for path, _ in base.places.values()}
    for name, layer in layers.items():
        path, tensor = base.places[name]
        layer.forward = partial(_product, layer, files[path], tensor)
    try:
        yield
    finally:
        for layer in layers.values():
            del layer.forward


def _product(layer: Any, file: Any, name: str, x: Tensor) -> Tensor:
    dtype = layer.compute_dtype
    weight = file.get_tensor(name).to(x.device, dtype)
    bias = None if layer.bias is None else layer.bias.to(dtype)
    return linear(x.to(dtype), weight, bias).to(x.dtype)
