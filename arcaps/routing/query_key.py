"""Query-key routing: the transformer's attention, which the paper's conclusion leaves to the future."""

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Routed
from arcaps.errors import ArcapsError
from arcaps.functional import agreements, mix_votes, shares_of, softmax_of_present, sum_over, vote_products
from arcaps.init import glorot_uniform_
from arcaps.kernels.mixing import along_positions
from arcaps.routing.base import Routing


def mean_vote(
    votes: Float[Tensor, "*where out inp dim"], presence: Float[Tensor, "*where inp"] | None
) -> Float[Tensor, "*where out dim"]:
    """The mean of the votes for each output, weighted by presence; zero where all inputs are absent."""
    if presence is None:
        return mix_votes(votes, torch.full_like(votes[..., 0], 1 / votes.shape[-2]))
    return mix_votes(votes, shares_of(presence).unsqueeze(-2).expand(votes.shape[:-1]))


def head_slices(votes: Float[Tensor, "*where out inp dim"], heads: int) -> Float[Tensor, "*where out head inp d"]:
    """The slice of each vote that a head weighs: a view."""
    return rearrange(votes, "... inp (head d) -> ... head inp d", head=heads)


def mean_of_heads(coefficients: Float[Tensor, "*where out head inp"]) -> Float[Tensor, "*where out inp"]:
    """The coefficients that are returned."""
    return sum_over(coefficients, -2) / coefficients.shape[-2]


def query_key_routing(
    votes: Float[Tensor, "*where out inp dim"],
    query: Float[Tensor, "out dim dim"],
    key: Float[Tensor, "out dim dim"],
    *,
    heads: int,
    presence: Float[Tensor, "*where inp"] | None = None,
) -> Routed:
    """Mix the votes for each output capsule by scaled scalar products of a query and keys, in several heads.

        q[n] = (mean over m of v[n, m]) Q[n];   k[n, m] = v[n, m] K[n]
        c[h, n, m] = softmax over m of <q[n], k[n, m]> / sqrt(D / heads), by the slice h of both
        s[n] = for each slice h, sum over m of c[h, n, m] v[n, m]

    Every vote for output n makes a key; their mean makes the query, so the reference vector follows the image instead
    of being a parameter, as in dynamic routing, without iterations. Each head weighs its own slice of the votes, which
    are the values. The coefficients returned are the mean over the heads; they too sum to 1 over the input channels.
    """
    present = None if presence is None else presence[..., None, None, :]
    queries = vote_products(mean_vote(votes, presence).unsqueeze(-2), query.unsqueeze(1)).squeeze(-2)  # (..., out, dim)
    queries = rearrange(queries, "... (head d) -> ... head d", head=heads) * (heads / votes.shape[-1]) ** 0.5
    if along_positions(votes):  # a large product and whole passes
        keys = head_slices(vote_products(votes, key.unsqueeze(1)), heads)
        coefficients = softmax_of_present(agreements(keys, queries), present)  # (..., out, head, inp)
        return Routed(mix_votes(head_slices(votes, heads), coefficients).flatten(-2), mean_of_heads(coefficients))
    # <q, v K> = <q K^T, v>: the one query is multiplied by the matrix, instead of all the keys
    asked = einsum(
        queries,
        rearrange(key, "out dim (head d) -> out dim head d", head=heads),
        "... out head d, out dim head d -> ... out head dim",
    )
    logits = einsum(asked, votes, "... head dim, ... inp dim -> ... head inp")
    coefficients = softmax_of_present(logits, present)
    mixed = einsum(coefficients, votes, "... head inp, ... inp dim -> ... head dim")  # of which each head has a slice
    capsules = mixed.unflatten(-1, (heads, -1)).diagonal(dim1=-3, dim2=-2)
    return Routed(rearrange(capsules, "... d head -> ... (head d)"), mean_of_heads(coefficients))


class QueryKeyRouting(Routing, name="query_key"):
    """Multi-head query-key attention with one query and one key matrix per output channel."""

    needs = frozenset({"presence"})

    def __init__(self, in_caps: int, out_caps: int, dim: int, *, heads: int = 4) -> None:
        super().__init__(in_caps, out_caps, dim)
        if heads < 1 or dim % heads:
            raise ArcapsError(f"{heads} heads do not divide capsules of dimension {dim}: give a divisor of {dim}")
        self.heads = heads
        self.query = nn.Parameter(torch.empty(out_caps, dim, dim))
        self.key = nn.Parameter(torch.empty(out_caps, dim, dim))
        glorot_uniform_(self.query, dim, dim)
        glorot_uniform_(self.key, dim, dim)

    def forward(
        self, votes: Float[Tensor, "*where out inp dim"], *, presence: Float[Tensor, "*where inp"] | None = None
    ) -> Routed:
        return query_key_routing(votes, self.query, self.key, heads=self.heads, presence=presence)
