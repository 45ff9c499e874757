import pytest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("shape", [(24, 24), (16, 48), (48, 16)])
def test_singular_values_end_near_one(shape):
    import torch

    from deploy.demo.muon import orthogonalised

    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    singular_values = torch.linalg.svdvals(orthogonalised(matrix))
    assert singular_values.min() > 0.5
    assert singular_values.max() < 1.3


def test_a_step_follows_the_gradient_in_float32():
    import torch
    from torch import nn

    from deploy.demo.muon import Muon

    matrix = nn.Parameter(torch.zeros(8, 8))
    optimizer = Muon([matrix], lr=0.1)
    (matrix * torch.eye(8)).sum().backward()
    optimizer.step()
    assert matrix.dtype == torch.float32
    # The gradient is orthogonal already: the step is the rate, scaled to AdamW's usual size.
    assert torch.allclose(matrix.detach().diagonal(), torch.full((8,), -0.1 * 0.2 * 8**0.5), rtol=0.4)
