"""Muon: momentum whose matrices are made near orthogonal before each step (https://kellerjordan.github.io/posts/muon).

torch.optim.Muon computes the iteration in bfloat16, which takes most of a step on a CPU without instructions for it,
and rounds otherwise from one CPU to the next. This one computes in the type of the parameters.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration, chosen by Muon's authors for a steep slope at zero."""
ITERATIONS = 5
RMS_OF_ADAMW = 0.2
"""The usual size of an AdamW update, which the matrices' updates are scaled to."""


class Muon(Optimizer):
    def __init__(self, matrices: Iterable[nn.Parameter], *, lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Nesterov momentum, made near orthogonal."""
        for group in self.param_groups:
            for matrix in group["params"]:
                gradient, momentum = matrix.grad, group["momentum"]
                mean = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                mean.lerp_(gradient, 1 - momentum)
                update = orthogonalised(gradient.lerp(mean, momentum))
                scale = RMS_OF_ADAMW * math.sqrt(max(matrix.shape))
                matrix.add_(update, alpha=-group["lr"] * scale)


def orthogonalised(matrix: Tensor) -> Tensor:
    """The matrix with all singular values moved to between about 0.7 and 1.2."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalised(matrix.T).T
    a, b, c = COEFFICIENTS
    result: Tensor = matrix / matrix.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = result @ result.T
        result = torch.addmm(result, torch.addmm(gram, gram, gram, beta=b, alpha=c), result, beta=a)
    return result
