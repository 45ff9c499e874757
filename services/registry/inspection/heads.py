"""Whether a model makes its logits as its configuration says: tried with a small head in its head's place."""

from typing import Any

import torch
from torch import Tensor, nn

from schemas.capabilities import LossForm

NUM_LOGITS = 8
SPREAD = 100.0
"""Factor of the hidden states: large enough that a cap of 30 changes the logits."""
TOLERANCE = 1e-4


class _Hidden(nn.Module):
    """Takes the place of the model within the model: whatever it is asked, its last hidden states are these."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self._hidden = hidden

    def forward(self, *_: Any, **__: Any) -> "_Output":
        return _Output(self._hidden)


class _Output:
    def __init__(self, last_hidden_state: Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getattr__(self, name: str) -> None:
        """Give None for caches, attentions and router logits, which nobody asked for."""

    def __getitem__(self, index: int) -> Tensor:
        return self.last_hidden_state


def head_makes(model: Any, form: LossForm) -> bool:
    """Return whether the model makes its logits in this form. `model` is of no use afterwards."""
    generator = torch.Generator().manual_seed(0)
    size = model.get_output_embeddings().in_features
    hidden = torch.randn(1, 4, size, generator=generator) * SPREAD
    head = nn.Linear(size, NUM_LOGITS, bias=False)
    setattr(model, model.base_model_prefix, _Hidden(hidden))
    model.set_output_embeddings(head)
    with torch.no_grad():
        logits = model(input_ids=torch.zeros(1, 4, dtype=torch.int64), use_cache=False).logits
        return torch.allclose(logits, _shaped(head(hidden), form), rtol=TOLERANCE, atol=TOLERANCE)


def _shaped(logits: Tensor, form: LossForm) -> Tensor:
    logits = logits * form.scale
    return logits if form.soft_cap is None else form.soft_cap * torch.tanh(logits / form.soft_cap)
