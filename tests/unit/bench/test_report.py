import pytest

from bench.report import percentile


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1), (0.0, 1)])
def test_a_percentile_is_the_smallest_value_that_this_share_does_not_exceed(share, expected):
    assert percentile([*range(100, 0, -1)], share) == expected
