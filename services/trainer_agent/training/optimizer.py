"""The optimizers over the trained parameters, and their states by parameter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon

from schemas.specification import OptimizerName, Recipe


@dataclass(frozen=True)
class Part:
    """One of the libraries' optimizers, over some of the parameters."""

    optimizer: Any
    new_state: Callable[[Any, nn.Parameter], None]
    """Gives a parameter the state that it has before its first update."""

    def moments_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the live tensors of one parameter's state, by name: moments sharded as it is, and what goes with
        moments of 8 bits. They are as before the first update, if there was none."""
        return {name: value for name, value in self._state_of(parameter).items() if name != STEP}

    def set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def set_step(self, parameter: nn.Parameter, step: int) -> None:
        """Set how many updates the moments have seen, which corrects their bias towards zero."""
        state = self._state_of(parameter)
        if isinstance(state.get(STEP), Tensor):
            state[STEP].fill_(float(step))
        elif STEP in state:
            state[STEP] = step

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        state: dict[str, Any] = self.optimizer.state[parameter]
        if not state:
            self.new_state(self.optimizer, parameter)
        return state


class Optimizer:
    """All parts as one optimizer."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._part_of = {
            parameter: part
            for part in parts
            for group in part.optimizer.param_groups
            for parameter in group["params"]
        }

    @classmethod
    def of(
        cls, parameters: Mapping[str, nn.Parameter], recipe: Recipe, tables: Sequence[Tensor] = ()
    ) -> Self:
        return cls(parts_of(parameters, recipe, tables))

    def step(self, rate: float) -> None:
        """Update all parameters by their gradients, and drop these."""
        for part in self._parts:
            part.set_rate(rate)
            part.optimizer.step()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        for part in self._parts:
            part.optimizer.zero_grad(set_to_none=True)

    def moments_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        return self._part_of[parameter].moments_of(parameter)

    def set_step(self, step: int) -> None:
        for parameter, part in self._part_of.items():
            part.set_step(parameter, step)


STEP = "step"
Group = dict[str, Any]


@dataclass(frozen=True)
class Groups:
    """The parameters by kind. Decay acts on matrices and tables; norms and biases are left out of it."""

    matrices: Group
    tables: Group
    rest: Group

    @classmethod
    def of(
        cls, parameters: Mapping[str, nn.Parameter], weight_decay: float, tables: Sequence[Tensor]
    ) -> Self:
        wide = [p for p in parameters.values() if p.ndim >= 2]
        own = [p for p in wide if any(p is table for table in tables)]
        return cls(
            _group([p for p in wide if not any(p is table for table in own)], weight_decay),
            _group(own, weight_decay),
            _group([p for p in parameters.values() if p.ndim < 2], 0.0),
        )

    @property
    def all(self) -> list[Group]:
        return [self.matrices, self.tables, self.rest]


def parts_of(
    parameters: Mapping[str, nn.Parameter], recipe: Recipe, tables: Sequence[Tensor] = ()
) -> list[Part]:
    """Return the parts for a recipe. `tables`: weights of the model's input and head, which are no matrices to
    Muon."""
    groups = Groups.of(parameters, recipe.weight_decay, tables)
    return [part for part in OPTIMIZERS[recipe.optimizer](groups) if part.optimizer is not None]


def _group(parameters: Sequence[nn.Parameter], weight_decay: float) -> Group:
    return {"params": list(parameters), "weight_decay": weight_decay}


def _adamw(groups: Sequence[Group]) -> Part:
    return Part(_built(AdamW, groups, fused=True), _with_zeros("exp_avg", "exp_avg_sq"))


def _bitsandbytes(name: str, groups: Groups) -> list[Part]:
    """Return bitsandbytes' optimizer. 8 bits are a byte for each value of a moment and a scale for each block of 256
    (Dettmers et al., 2022); moments of a parameter of fewer than 4,096 values have 32. Paged ones lie in memory that
    a GPU may put out to the host's."""
    from bitsandbytes import optim

    # A CPU has one memory: there is nothing to page, which the library would warn of.
    is_on_gpu = any(p.device.type == "cuda" for group in groups.all for p in group["params"])
    kind = getattr(optim, name if is_on_gpu else name.removeprefix("Paged"))
    return [Part(_built(kind, groups.all), _init_state)]


def _muon(groups: Groups) -> list[Part]:
    """Return Muon for matrices, AdamW for all else. Its rate is scaled so that an update has the size of one of
    AdamW's (Liu et al., Muon is Scalable for LLM Training, 2025), which the recipe's rates are made for."""
    muon = _built(Muon, [groups.matrices], adjust_lr_fn="match_rms_adamw")
    return [Part(muon, _with_zeros("momentum_buffer")), _adamw([groups.tables, groups.rest])]


def _built(kind: Any, groups: Sequence[Group], **options: Any) -> Any:
    """Return the optimizer of the groups that have parameters; None where none has."""
    filled = [group for group in groups if group["params"]]
    return kind(filled, lr=0.0, **options) if filled else None


def _with_zeros(*names: str) -> Callable[[Any, nn.Parameter], None]:
    def new_state(optimizer: Any, parameter: nn.Parameter) -> None:
        state = optimizer.state[parameter]
        if isinstance(optimizer, AdamW):
            state[STEP] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        for name in names:
            state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)

    return new_state


def _init_state(optimizer: Any, parameter: nn.Parameter) -> None:
    for number, group in enumerate(optimizer.param_groups):
        for index, each in enumerate(group["params"]):
            if each is parameter:
                optimizer.init_state(group, parameter, number, index)


OPTIMIZERS: Mapping[OptimizerName, Callable[[Groups], list[Part]]] = {
    "adamw": lambda groups: [_adamw(groups.all)],
    "adamw_8bit": lambda groups: _bitsandbytes("AdamW8bit", groups),
    "paged_adamw_8bit": lambda groups: _bitsandbytes("PagedAdamW8bit", groups),
    "paged_adamw_32bit": lambda groups: _bitsandbytes("PagedAdamW32bit", groups),
    "muon": _muon,
}
