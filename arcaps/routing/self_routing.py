"""Self-routing: an input capsule alone decides where it goes."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Routed
from arcaps.competition import over_outputs
from arcaps.functional import agreements, mix_votes, shares_of
from arcaps.routing.base import Compete, Routing
from arcaps.votes import votes_of_patches


def self_routing(
    votes: Float[Tensor, "*where out inp dim"],
    inputs: Float[Tensor, "*where inp in_dim"],
    weight: Float[Tensor, "inp in_dim out"],
    bias: Float[Tensor, "inp out"],
    *,
    presence: Float[Tensor, "*where inp"] | None = None,
    compete: Compete = over_outputs,
) -> Routed:
    """Route by the input capsules instead of the votes ("Self-routing capsule networks", 2019).

        r[n, m] = softmax over n of (<weight[m, n], u[m]> + bias[m, n])
        s[n] = sum over m of a[m] r[n, m] v[n, m] / sum over m of a[m] r[n, m]
        A[n] = sum over m of a[m] r[n, m] / sum over m of a[m]

    Returned are the capsules `s`, the coefficients `a * r` and the presence `A`, whose sum over the outputs is 1.
    Where all inputs are absent, all three are 0.
    """
    logits = votes_of_patches(inputs, weight.unsqueeze(-1), bias.unsqueeze(-1)).squeeze(-1)  # (..., out, inp)
    shares = compete(logits)
    everywhere = torch.ones_like(shares[..., 0, :]) if presence is None else presence
    weights = shares * everywhere.unsqueeze(-2)
    sure = agreements(shares, shares_of(everywhere))
    return Routed(mix_votes(votes, shares_of(weights)), weights, sure)


class SelfRouting(Routing, name="self"):
    """Self-routing: one linear map of each input capsule decides, in one pass. Both its parameters start at 0.

    At the start the capsules are the means of their votes, weighted by presence. The authors' class layer reads the
    class from the presence: `score="presence"`. What differs: their loss is the negative log-likelihood of the
    presence, which is not among ours; with votes "conv" an input capsule is all that a kernel sees of one channel; the
    competition can be a wider one.
    """

    needs = frozenset({"inputs", "presence", "compete"})
    divides = "outputs"
    gives_presence = True

    def __init__(self, in_caps: int, out_caps: int, dim: int, *, in_dim: int) -> None:
        super().__init__(in_caps, out_caps, dim)
        self.in_dim = in_dim
        self.weight = nn.Parameter(torch.zeros(in_caps, in_dim, out_caps))
        self.bias = nn.Parameter(torch.zeros(in_caps, out_caps))

    def forward(
        self,
        votes: Float[Tensor, "*where out inp dim"],
        *,
        inputs: Float[Tensor, "*where inp in_dim"],
        presence: Float[Tensor, "*where inp"] | None = None,
        compete: Compete = over_outputs,
    ) -> Routed:
        return self_routing(votes, inputs, self.weight, self.bias, presence=presence, compete=compete)
