"""Confidence intervals."""

from math import sqrt


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share seen in `count` cases (Wilson's score interval)."""
    n, p, z = count, share, 1.959964
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return middle - half, middle + half
