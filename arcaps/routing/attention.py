"""Attention routing: the paper's own."""

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Routed
from arcaps.compat import needs_plain_functions
from arcaps.errors import ArcapsError
from arcaps.functional import (
    in_autocast,
    mix_votes,
    softmax_of_present,
    with_elements_last,
)
from arcaps.init import glorot_uniform_
from arcaps.kernels import ConvolvedVotes, RoutedVotes
from arcaps.kernels.mixing import along_positions
from arcaps.routing.base import Routing
from arcaps.votes import ConvVotes


def multi_head_attention_routing(
    votes: Float[Tensor, "*where out inp dim"],
    weight: Float[Tensor, "head out inp inp dim"],
    presence: Float[Tensor, "*where inp"] | None = None,
    *,
    scale: float = 1.0,
) -> Routed:
    """Mix the votes as `attention_routing` does, in several heads: each weighs its own slice of the vote.

        b[h, n, m] = scale * sum over k of <v[n, k], w[h, n, m, k]>;   c[h, n, m] = softmax over m of b[h, n, m]
        s[n] = for each slice h, sum over m of c[h, n, m] v[n, m]

    The logits of head h are `scale` times the scalar products of ALL the votes for output n with `weight[h, n, m]`. The
    coefficients returned are the mean over the heads; they too sum to 1 over the input channels.
    """
    asking, weights = present_votes(votes, presence)
    asking, votes = with_elements_last(asking), with_elements_last(votes)
    logits = scale * einsum(asking, weight, "... out inp dim, head out logit inp dim -> ... out head logit")
    coefficients = softmax_of_present(logits, None if weights is None else weights.unsqueeze(-2))
    slices = rearrange(votes, "... inp (head d) -> ... inp head d", head=len(weight))
    mixed = einsum(coefficients, slices, "... head inp, ... inp head d -> ... head d")
    return Routed(rearrange(mixed, "... head d -> ... (head d)"), coefficients.mean(-2))


def present_votes(
    votes: Float[Tensor, "*where out inp dim"], presence: Float[Tensor, "*where inp"] | None
) -> tuple[Float[Tensor, "*where out inp dim"], Float[Tensor, "*where 1 inp"] | None]:
    """The votes times their presence, and the presence for every output; without presence the votes as they are."""
    if presence is None:
        return votes, None
    return votes * presence[..., None, :, None], presence.unsqueeze(-2)


def attention_routing(
    votes: Float[Tensor, "*where out inp dim"],
    weight: Float[Tensor, "out inp inp dim"],
    presence: Float[Tensor, "*where inp"] | None = None,
) -> Routed:
    """Mix the votes for each output capsule by a learned attention (eqs. 6 to 8).

        b[n, m] = w[n, m] . (s~[n, 1], ..., s~[n, M])            (eq. 7)
        c[n, m] = exp(b[n, m]) / sum over k of exp(b[n, k])      (eq. 8)
        s[n]    = sum over m of c[n, m] s~[n, m]                 (eq. 6)

    The logit `b[n, m]` is the scalar product of ALL the votes for output n with a vector of their own, `weight[n,
    m]`; the softmax is over m, the input channels. "Attention routing between capsules" (2019), section 3.3.
    """
    asking, weights = present_votes(votes, presence)
    if along_positions(asking, weight):
        products = weight.flatten(2) @ rearrange(asking, "... out inp dim -> out (inp dim) (...)")
        logits = rearrange(products, "out logit row -> row out logit").view(votes.shape[:-1])
    else:
        logits = einsum(asking, weight, "... out inp dim, out logit inp dim -> ... out logit")
    coefficients = softmax_of_present(logits, weights)
    return Routed(mix_votes(votes, coefficients), coefficients)


class AttentionRouting(Routing, name="attention"):
    """Attention routing with its parameter vectors `w[n, m]`, each of size `in_caps * dim`. No bias.

    The paper has one head and no scaling. With `heads` each head weighs its own slice of the vote; with `scale` the
    logits are divided by the square root of the vectors' size, as in a transformer.
    """

    needs = frozenset({"presence"})

    def __init__(self, in_caps: int, out_caps: int, dim: int, *, heads: int = 1, scale: bool = False) -> None:
        super().__init__(in_caps, out_caps, dim)
        if heads < 1 or dim % heads:
            raise ArcapsError(f"{heads} heads do not divide capsules of dimension {dim}: give a divisor of {dim}")
        self.heads = heads
        self.scale = (in_caps * dim) ** -0.5 if scale else 1.0
        shape = (out_caps, in_caps, in_caps, dim)
        self.weight = nn.Parameter(torch.empty(shape if heads == 1 else (heads, *shape)))
        glorot_uniform_(self.weight, in_caps * dim, in_caps * dim)

    def forward(
        self, votes: Float[Tensor, "*where out inp dim"], *, presence: Float[Tensor, "*where inp"] | None = None
    ) -> Routed:
        if self.heads > 1:
            return multi_head_attention_routing(votes, self.weight, presence, scale=self.scale)
        return attention_routing(votes, self.scaled_weight, presence)

    @property
    def scaled_weight(self) -> Tensor:
        """The weights with the scaling of the logits in them."""
        return self.weight if self.scale == 1 else self.weight * self.scale

    def route(self, votes: ConvVotes, capsules: Float[Tensor, "batch height width in_caps in_dim"]) -> Routed:
        """With the votes in the order in memory that is the fastest where many positions share the kernels.

        With one position, as in the class layer, there are few rows and the plain way is faster. A program that is
        compiled, exported or transformed by torch.func goes the plain way too.
        """
        if needs_plain_functions():
            return Routed(*super().route(votes, capsules))
        height, width = votes.new_size(capsules.shape[1], capsules.shape[2])
        if height * width == 1:
            return Routed(*super().route(votes, capsules))
        votes.check(capsules)
        channels, kernels = in_autocast(rearrange(capsules, "b h w m d -> m b h w d"), votes.weight)
        empty = votes.weight.new_zeros(self.in_caps, self.out_caps, self.dim)
        bias: Tensor = empty if votes.bias is None else votes.bias
        scaled = self.scaled_weight if self.heads > 1 else self.scaled_weight.unsqueeze(0)
        shift = einsum(bias, scaled, "inp out dim, head out logit inp dim -> out head logit")
        products = ConvolvedVotes.apply(channels, kernels, None, votes.stride, votes.padding)
        mixed, coefficients = RoutedVotes.apply(products, *in_autocast(bias, scaled), shift)
        where = (len(capsules), height, width)
        return Routed(mixed.unflatten(0, where), coefficients.mean(-2).unflatten(0, where))
