"""A base of which each process reads only the rows that it holds: built without values, filled once it is sharded."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from services.trainer_agent.training.base_files import tensor_places
from services.trainer_agent.training.places import OtherForm, Place, Places, places_in, read_block, shape_of
from services.trainer_agent.training.slices import slice_of, whole_slice
from shared.causal_models import tied_names

log = logging.getLogger(__name__)


def build_empty(config: Any, base_dir: Path, options: Mapping[str, Any]) -> tuple[Any, Places] | None:
    """Return the model, with its parameters on the device `meta`; buffers have their values. None, with the reason in
    the log, where rows of its parameters are not rows of tensors in the files."""
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, **options)
    model.tie_weights()
    places = _places(model, base_dir)
    if isinstance(places, str):
        log.warning("each process reads the whole base before it is sharded: %s", places)
        return None
    _read_buffers(model, places)
    return model, places


def stand_in_for(parameter: nn.Parameter) -> nn.Parameter:
    """Return a parameter of its shape that is one value in host memory."""
    value = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
    return nn.Parameter(value, requires_grad=parameter.requires_grad)


def stand_in(model: Any) -> dict[str, nn.Parameter]:
    """Replace each parameter on `meta`, and return what stands in for it, by its name in `Places`."""
    of_parameter: dict[int, nn.Parameter] = {}
    state: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.is_meta:
            state[name] = of_parameter.setdefault(id(parameter), stand_in_for(parameter))
    model.load_state_dict(state, strict=False, assign=True)
    return {_name_of(name): parameter for name, parameter in model.named_parameters() if name in state}


def filled(
    parameters: Mapping[str, nn.Parameter], places: Places, device: torch.device, *, reads: bool
) -> Iterator[nn.Parameter]:
    """Yield each stand-in with memory of its own on the device, one after the other: whoever takes one keeps a share
    of it and lets go of the rest. `reads`: with its values, which else another rank has to send."""
    for name, parameter in parameters.items():
        parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        if reads:
            read_block(whole_slice("", parameter), places[name], parameter.data)
        yield parameter


def read_rows(model: Any, places: Places, device: torch.device) -> None:
    """Give each parameter on `meta`, which is sharded by now, this rank's rows of it. `device` is where they lie."""
    state: dict[str, nn.Parameter] = {}
    of_parameter: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.is_meta:
            if id(parameter) not in of_parameter:
                rows = _rows(parameter, places[_name_of(name)], device)
                of_parameter[id(parameter)] = rows
            state[name] = of_parameter[id(parameter)]
    model.load_state_dict(state, strict=False, assign=True)


def _name_of(parameter: str) -> str:
    """Return the name of a parameter without PEFT's wrapper of its layer."""
    return parameter.replace(".base_layer.", ".")


def _rows(parameter: DTensor, places: tuple[Place, ...], device: torch.device) -> nn.Parameter:
    here = slice_of("", parameter)
    own = torch.empty(here.shape, dtype=parameter.dtype, device=device)
    read_block(here, places, own)
    sharded = DTensor.from_local(
        own,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return nn.Parameter(sharded, requires_grad=parameter.requires_grad)


def _places(model: Any, base_dir: Path) -> Places | str:
    """Return the places of the model's tensors, or why they are not to be read from there."""
    family = model.config.model_type
    if getattr(model.config, "quantization_config", None) is not None:
        return "its files are quantised"
    if model._keep_in_fp32_modules_strict and model.dtype is not torch.float32:  # noqa: SLF001 there is no public name
        return f"some layers of {family} stay in float32"
    try:
        places = places_in(model, tensor_places(base_dir))
    except OtherForm as error:
        return f"{error} of {family} has another form in the files"
    shapes = {name: shape_of(each) for name, each in places.items()}
    unlike = [name for name, each in model.named_parameters() if shapes.get(name) != tuple(each.shape)]
    if unlike:
        return f"{unlike[0]} has shape {shapes.get(unlike[0])} in the files"
    twice = sorted(tied_names(model).keys() & places.keys())
    return f"the files have {twice[0]} beside what it is tied to" if twice else places


def _read_buffers(model: Any, places: Places) -> None:
    """Read the buffers that belong to the files, where these have them."""
    saved = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name in saved and name in places:
            read_block(whole_slice("", buffer), places[name], buffer)
