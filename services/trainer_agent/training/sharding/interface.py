"""What a way to shard has to do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from services.trainer_agent.training.slices import Slice


@dataclass(frozen=True)
class Held:
    """What this rank updates of one trained tensor."""

    slice: Slice
    weight: Tensor
    """Weight in float32, of the slice's shape."""
    moments: Mapping[str, Tensor]
    """State of the optimizer by name, of the slice's shape, and what goes with moments of 8 bits. It is live: writing
    to it changes the run."""


class Sharding(Protocol):
    """The trained weights, their gradients and moments, spread over all ranks. All ranks call a method at once."""

    @property
    def training_network(self) -> Any:
        """Network that computes losses whose gradient is needed: the run's own, or a wrapper around it."""

    @property
    def is_copy(self) -> bool:
        """Whether a rank of the first node has the same weights and moments as this one."""

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Add the gradient of the ranks' mean of `loss`. `is_last`: no other follows before the update."""

    def clip_gradients(self) -> float:
        """Scale the gradient down to the recipe's `max_grad_norm`, now or in the update. Returns: its norm before."""

    def step(self, rate: float) -> None:
        """Update all trained weights by their gradients, and drop these."""

    def drop_gradients(self) -> None: ...

    def held(self) -> Iterator[Held]:
        """Yield what this rank updates. Moments are as they are before the first update, if there was none."""

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all of each trained tensor, on every rank, by its name in the model file."""

    def read_by_passes(self) -> Iterator[tuple[Slice, Tensor]]:
        """Yield live views of what this rank has of the trained weights that forward passes compute with."""

    def set_step(self, step: int) -> None:
        """Set how many updates the moments have seen, which corrects their bias towards zero."""
