"""Confidence intervals."""

from collections.abc import Sequence
from math import sqrt
from statistics import mean, stdev


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share seen in `count` cases (Wilson's score interval).

    (p + z^2 / 2n  -+  z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n),   z = 1.96
    """
    n, p, z = count, share, 1.959964
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return middle - half, middle + half


STUDENT = (
    *(12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139),
    *(2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963),
    *(2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831, 2.048407, 2.045230, 2.042272),
)
"""The 97.5 % quantile of Student's t distribution, for 1 to 30 degrees of freedom"""


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the mean of a few independent values (Student); None for one value.

    mean -+ t s / sqrt(n)      s: the standard deviation, t: the quantile for n - 1 degrees of freedom
    """
    if len(values) < 2:
        return None
    degrees = len(values) - 1
    quantile = STUDENT[degrees - 1] if degrees <= len(STUDENT) else 1.959964 + 2.372271 / degrees
    half = quantile * stdev(values) / sqrt(len(values))
    return mean(values) - half, mean(values) + half
