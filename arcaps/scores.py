"""Scores: class capsules become a number in 0..1 for each class."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Capsules
from arcaps.errors import ArcapsError
from arcaps.functional import lengths, widened
from arcaps.init import glorot_uniform_
from arcaps.registry import Named


class Scored(NamedTuple):
    """The scores of a batch."""

    scores: Float[Tensor, "batch classes"]
    """In 0..1; the largest is the answer."""
    logits: Float[Tensor, "batch classes"] | None = None
    """What goes into the softmax, where there is one."""


class Score(nn.Module, Named, ABC, kind="score"):
    """Class capsules become scores.

    Its constructor takes `(classes, dim, max_length)`, then its options by keyword. `max_length` is that of the
    activation of the class layer.
    """

    def __init__(self, classes: int, dim: int, max_length: float | None) -> None:
        super().__init__()
        self.classes, self.dim, self.max_length = classes, dim, max_length

    @abstractmethod
    def forward(self, capsules: Capsules) -> Scored:
        """The scores of class capsules `(batch, classes, dim)`."""


class LengthScore(Score, name="length"):
    """The length as a part of the longest that the activation allows: `||u|| / sqrt(D)` for the paper's (eq. 10).

    It is in float32 or better, also under autocast: in bfloat16 all lengths from 0.9 to 0.95 are one of 13 numbers.
    """

    def __init__(self, classes: int, dim: int, max_length: float | None) -> None:
        super().__init__(classes, dim, max_length)
        if max_length is None:
            raise ArcapsError(
                "score length needs an activation that bounds the length of the class capsules: "
                "give another activation, such as squash, or another score: presence, linear"
            )

    def forward(self, capsules: Capsules) -> Scored:
        assert self.max_length is not None
        return Scored(lengths(widened(capsules.poses)) / self.max_length)


class PresenceScore(Score, name="presence"):
    """The presence that the routing of the class layer gives, in float32 or better."""

    def forward(self, capsules: Capsules) -> Scored:
        if capsules.presence is None:
            raise ArcapsError("score presence needs a routing of the class layer that gives presence, such as em")
        return Scored(widened(capsules.presence))


class LinearScore(Score, name="linear"):
    """A logit for each class, the scalar product of its capsule and a vector; the scores are their softmax.

    z[n] = w[n] . u[n] + b[n],   score[n] = exp(z[n]) / sum over k of exp(z[k])
    """

    def __init__(self, classes: int, dim: int, max_length: float | None) -> None:
        super().__init__(classes, dim, max_length)
        self.weight = nn.Parameter(torch.empty(classes, dim))
        self.bias = nn.Parameter(torch.zeros(classes))
        glorot_uniform_(self.weight, dim, 1)

    def forward(self, capsules: Capsules) -> Scored:
        logits = einsum(capsules.poses, self.weight, "b n d, n d -> b n") + self.bias
        return Scored(logits.softmax(-1), logits)


def list_scores() -> list[str]:
    """The names of all scores, those of your own too."""
    return sorted(Score.known)
