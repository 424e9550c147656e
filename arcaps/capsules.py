"""What flows between capsule layers, and what a routing returns."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Capsules(NamedTuple):
    """Capsules: a pose each, and where a layer knows it, how sure each is to be there.

    A layer takes them, or a plain tensor of poses, and returns them.
    """

    poses: Float[Tensor, "*where caps dim"]
    """A capsule is the last axis."""
    presence: Float[Tensor, "*where caps"] | None = None
    """In 0..1: a capsule with presence 0 is as if it were not there. None: the length of the pose says it."""
    coefficients: Float[Tensor, "*where caps inp"] | None = None
    """Of the routing that made them: how much of each input went into each capsule."""


class Routed(NamedTuple):
    """What a routing returns. A plain pair (capsules, coefficients) means the same, without presence."""

    capsules: Float[Tensor, "*where out dim"]
    coefficients: Float[Tensor, "*where out inp"]
    presence: Float[Tensor, "*where out"] | None = None


def as_capsules(capsules: Capsules | Float[Tensor, "*where caps dim"]) -> Capsules:
    """Capsules, from capsules or from a plain tensor of poses."""
    return capsules if isinstance(capsules, Capsules) else Capsules(capsules)
