"""A base of which each process reads only the rows that it holds: built without values, filled once it is sharded."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors import safe_open
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from services.trainer_agent.training.base_files import tensor_places
from services.trainer_agent.training.slices import read_slice, slice_of
from shared.causal_models import has_conversions, tied_names

log = logging.getLogger(__name__)

Places = Mapping[str, tuple[Path, str]]
"""File, and tensor in it, of each parameter of a causal language model."""


def build_empty(config: Any, base_dir: Path, options: Mapping[str, Any]) -> tuple[Any, Places] | None:
    """Return the model, with its parameters on the device `meta`; buffers have their values. None, with the reason in
    the log, where rows of its parameters are not rows of tensors in the files."""
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, **options)
    model.tie_weights()
    files = tensor_places(base_dir)
    places = _places(model, files)
    if reason := _why_whole(model, places, files):
        log.warning("each process reads the whole base before it is sharded: %s", reason)
        return None
    _read_buffers(model, files)
    return model, places


def read_rows(model: Any, places: Places, device: torch.device) -> None:
    """Give each parameter on `meta`, which is sharded by now, this rank's rows of it. `device` is where they lie."""
    state: dict[str, nn.Parameter] = {}
    of_parameter: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.is_meta:
            if id(parameter) not in of_parameter:
                rows = _rows(parameter, *places[name.replace(".base_layer.", ".")], device)
                of_parameter[id(parameter)] = rows
            state[name] = of_parameter[id(parameter)]
    model.load_state_dict(state, strict=False, assign=True)


def _rows(parameter: DTensor, path: Path, tensor: str, device: torch.device) -> nn.Parameter:
    here = slice_of(tensor, parameter)
    # One file at a time: what was read of it is part of the process as long as it is open.
    with safe_open(path, framework="pt") as file:
        block = read_slice(file, here) if all(here.shape) else torch.empty(here.shape)
        own = block.to(device, parameter.dtype, copy=True)
    sharded = DTensor.from_local(
        own,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return nn.Parameter(sharded, requires_grad=parameter.requires_grad)


def _why_whole(model: Any, places: Places, files: Mapping[str, Path]) -> str | None:
    family = model.config.model_type
    if getattr(model.config, "quantization_config", None) is not None:
        return "its files are quantised"
    if has_conversions(model):
        return f"files of {family} have other tensors than its model"
    if model._keep_in_fp32_modules_strict and model.dtype is not torch.float32:  # noqa: SLF001 there is no public name
        return f"some layers of {family} stay in float32"
    shapes = _shapes(places)
    unlike = [name for name, each in model.named_parameters() if shapes.get(name) != tuple(each.shape)]
    if unlike:
        return f"{unlike[0]} has shape {shapes.get(unlike[0])} in the files"
    twice = sorted(tied_names(model).keys() & files.keys())
    return f"the files have {twice[0]} beside what it is tied to" if twice else None


def _places(model: Any, files: Mapping[str, Path]) -> Places:
    """Return the places of the parameters that the files have. Some leave out the prefix of the inner base model."""
    prefix = f"{model.base_model_prefix}."
    tensors = {
        name: name if name in files else name.removeprefix(prefix) for name, _ in model.named_parameters()
    }
    return {name: (files[tensor], tensor) for name, tensor in tensors.items() if tensor in files}


def _shapes(places: Places) -> Mapping[str, tuple[int, ...]]:
    files: dict[Path, Any] = {path: safe_open(path, framework="pt") for path, _ in places.values()}
    return {name: tuple(files[path].get_slice(tensor).get_shape()) for name, (path, tensor) in places.items()}


def _read_buffers(model: Any, files: Mapping[str, Path]) -> None:
    """Read the buffers that belong to the files, where these have them."""
    saved = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name in saved and name in files:
            with safe_open(files[name], framework="pt") as file:
                buffer.copy_(file.get_tensor(name))
