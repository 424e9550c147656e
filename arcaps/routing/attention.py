"""Attention routing: the paper's own."""

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.functional import mix_votes
from arcaps.init import glorot_uniform_
from arcaps.routing.base import Routing


def attention_routing(
    votes: Float[Tensor, "*where out inp dim"],
    weight: Float[Tensor, "out inp inp dim"],
) -> tuple[Float[Tensor, "*where out dim"], Float[Tensor, "*where out inp"]]:
    """Mix the votes for each output capsule by a learned attention (eqs. 6 to 8).

    The logit `b[n, m]` is the scalar product of ALL the votes for output n with a vector of their own, `weight[n,
    m]`; the softmax is over m, the input channels.
    """
    logits = einsum(votes, weight, "... out inp dim, out logit inp dim -> ... out logit")
    coefficients = logits.softmax(-1)
    return mix_votes(votes, coefficients), coefficients


class AttentionRouting(Routing, name="attention"):
    """Attention routing with its parameter vectors `w[n, m]`, each of size `in_caps * dim`. No bias, no scaling."""

    def __init__(self, in_caps: int, out_caps: int, dim: int) -> None:
        super().__init__(in_caps, out_caps, dim)
        self.weight = nn.Parameter(torch.empty(out_caps, in_caps, in_caps, dim))
        glorot_uniform_(self.weight, in_caps * dim, in_caps * dim)

    def forward(
        self, votes: Float[Tensor, "*where out inp dim"]
    ) -> tuple[Float[Tensor, "*where out dim"], Float[Tensor, "*where out inp"]]:
        return attention_routing(votes, self.weight)
