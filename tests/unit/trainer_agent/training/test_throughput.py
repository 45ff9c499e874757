"""A share of a peak is told only of products whose peak is known."""

import pytest

from services.trainer_agent.training.throughput import peak_flops_of

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("product", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", 70e12),
    ],
)
def test_a_known_product_has_its_own_peak(product, peak):
    assert peak_flops_of(product) == peak


@pytest.mark.parametrize("product", ["NVIDIA L40", "NVIDIA RTX A1000", "NVIDIA GH200 480GB", ""])
def test_a_product_that_only_sounds_like_another_has_none(product):
    assert peak_flops_of(product) is None
