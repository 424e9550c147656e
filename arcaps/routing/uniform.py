"""Routings that do not look at the votes: the controls of every comparison."""

import torch
from jaxtyping import Float
from torch import Tensor

from arcaps.capsules import Routed
from arcaps.competition import over_outputs
from arcaps.errors import ArcapsError
from arcaps.routing.base import Compete, Routing, mix_by_logits


class BlindRouting(Routing):
    """The coefficients do not depend on the votes."""

    needs = frozenset({"presence", "compete"})

    def __init__(self, in_caps: int, out_caps: int, dim: int, *, over: str) -> None:
        super().__init__(in_caps, out_caps, dim)
        if over not in ("outputs", "inputs"):
            raise ArcapsError(f"{self.name} routing over {over!r}: there are outputs, inputs")
        self.divides = "outputs" if over == "outputs" else "inputs"

    def logits(self, votes: Float[Tensor, "*where out inp dim"]) -> Float[Tensor, "out inp"]:
        """The logits of the coefficients: all 0, if not told otherwise."""
        return votes.new_zeros(self.out_caps, self.in_caps)

    def forward(
        self,
        votes: Float[Tensor, "*where out inp dim"],
        *,
        presence: Float[Tensor, "*where inp"] | None = None,
        compete: Compete = over_outputs,
    ) -> Routed:
        logits = torch.zeros_like(votes[..., 0]) + self.logits(votes).to(votes.dtype)
        return mix_by_logits(votes, logits, over=self.divides, presence=presence, compete=compete)


class UniformRouting(BlindRouting, name="uniform"):
    """Every input goes to every output alike.

    Over the "outputs" an input divides itself into equal shares, which is dynamic routing with one iteration; over
    the "inputs" an output capsule is the mean of the votes for it.
    """

    def __init__(self, in_caps: int, out_caps: int, dim: int, *, over: str = "outputs") -> None:
        super().__init__(in_caps, out_caps, dim, over=over)


class RandomRouting(BlindRouting, name="random"):
    """Coefficients drawn once and never trained: the softmax of standard normal numbers, saved with the model."""

    frozen: Tensor

    def __init__(self, in_caps: int, out_caps: int, dim: int, *, over: str = "inputs") -> None:
        super().__init__(in_caps, out_caps, dim, over=over)
        self.register_buffer("frozen", torch.randn(out_caps, in_caps))

    def logits(self, votes: Float[Tensor, "*where out inp dim"]) -> Float[Tensor, "out inp"]:
        return self.frozen
