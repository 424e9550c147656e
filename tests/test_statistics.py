"""Confidence intervals."""

import pytest

from arcaps.statistics import wilson


def test_wilson_by_hand() -> None:
    """8 of 10: 0.4902 to 0.9433 (Wilson 1927; the same as statsmodels' proportion_confint)."""
    assert wilson(0.8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)


@pytest.mark.parametrize("count", [1, 10, 10_000])
def test_the_ends_stay_inside(count: int) -> None:
    for share in (0.0, 1.0):
        low, high = wilson(share, count)
        assert (
            -1e-12 <= low <= share <= high <= 1 + 1e-12 or low == pytest.approx(share) or high == pytest.approx(share)
        )
        assert 0 < high - low < 1
