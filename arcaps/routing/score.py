"""Score routing: the attention families of translation models, between capsules."""

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Routed
from arcaps.competition import over_outputs
from arcaps.errors import ArcapsError
from arcaps.functional import agreements, vote_products
from arcaps.init import glorot_uniform_
from arcaps.kernels import SumWithVector
from arcaps.kernels.mixing import along_positions
from arcaps.routing.base import Compete, Routing, mix_by_logits
from arcaps.routing.query_key import mean_vote


def dot_score(
    query: Float[Tensor, "*where out dim"], votes: Float[Tensor, "*where out inp dim"]
) -> Float[Tensor, "*where out inp"]:
    """`b[n, m] = q[n] . v[n, m]` (Luong 2015, dot)."""
    return agreements(votes, query)


def general_score(
    query: Float[Tensor, "*where out dim"],
    votes: Float[Tensor, "*where out inp dim"],
    weight: Float[Tensor, "out dim dim"],
) -> Float[Tensor, "*where out inp"]:
    """`b[n, m] = q[n]^T W[n] v[n, m]` (Luong 2015, general). With the identity it is `dot_score`."""
    return dot_score(vote_products(query.unsqueeze(-2), weight.unsqueeze(1)).squeeze(-2), votes)


def additive_score(
    query: Float[Tensor, "*where out dim"],
    votes: Float[Tensor, "*where out inp dim"],
    of_query: Float[Tensor, "out dim hidden"],
    of_vote: Float[Tensor, "out dim hidden"],
    bias: Float[Tensor, "out hidden"],
    weight: Float[Tensor, "out hidden"],
) -> Float[Tensor, "*where out inp"]:
    """`b[n, m] = w[n] . tanh(Wq[n] q[n] + Wk[n] v[n, m] + b[n])` (Bahdanau 2015; Luong's concat is the same)."""
    asked = vote_products(query.unsqueeze(-2), of_query.unsqueeze(1)).squeeze(-2) + bias  # (..., out, hidden)
    keys = vote_products(votes, of_vote.unsqueeze(1))  # (..., out, inp, hidden)
    if along_positions(keys, asked, weight):
        return agreements(SumWithVector.apply(keys, asked).tanh(), weight.expand_as(asked))
    return einsum((keys + asked.unsqueeze(-2)).tanh(), weight, "... out inp hidden, out hidden -> ... out inp")


class ScoreRouting(Routing, name="score"):
    """One query for each output; the votes are keys and values; a score of the two is the logit.

    | score    | logit                                 | parameters                                     |
    |----------|---------------------------------------|------------------------------------------------|
    | dot      | `q . v`                               | none                                           |
    | general  | `q^T W v`                             | W (out, dim, dim)                              |
    | additive | `w . tanh(Wq q + Wk v + b)`           | Wq, Wk (out, dim, hidden), b, w (out, hidden)  |

    The `query` is the "mean" vote, which follows the image, or a "learned" vector for each output. Over the "inputs"
    the coefficients of an output sum to 1; over the "outputs" each input divides itself, as in dynamic routing.

    The scores are those of "Neural machine translation by jointly learning to align and translate" (Bahdanau, 2015)
    and "Effective approaches to attention-based neural machine translation" (Luong, 2015); as routings they are ours.
    All of them treat the inputs alike, which attention routing does not: to permute the inputs permutes the
    coefficients and leaves the capsules. So they also serve where an input is a place in an image.
    """

    needs = frozenset({"presence", "compete"})

    def __init__(
        self,
        in_caps: int,
        out_caps: int,
        dim: int,
        *,
        score: str = "additive",
        query: str = "mean",
        hidden: int = 16,
        over: str = "inputs",
    ) -> None:
        super().__init__(in_caps, out_caps, dim)
        for what, value, known in (
            ("score", score, ("dot", "general", "additive")),
            ("query", query, ("mean", "learned")),
            ("over", over, ("inputs", "outputs")),
        ):
            if value not in known:
                raise ArcapsError(f"score routing with {what} {value!r}: there are {', '.join(known)}")
        if hidden < 1:
            raise ArcapsError(f"score routing with hidden {hidden}: give at least 1")
        self.score = score
        self.divides = over  # type: ignore[assignment]
        self.query = nn.Parameter(0.02 * torch.randn(out_caps, dim)) if query == "learned" else None
        if score == "general":
            self.weight = nn.Parameter(torch.empty(out_caps, dim, dim))
            glorot_uniform_(self.weight, dim, dim)
        elif score == "additive":
            self.of_query = nn.Parameter(torch.empty(out_caps, dim, hidden))
            self.of_vote = nn.Parameter(torch.empty(out_caps, dim, hidden))
            self.bias = nn.Parameter(torch.zeros(out_caps, hidden))
            self.weight = nn.Parameter(torch.empty(out_caps, hidden))
            glorot_uniform_(self.of_query, dim, hidden)
            glorot_uniform_(self.of_vote, dim, hidden)
            glorot_uniform_(self.weight, hidden, 1)

    def logits(
        self, votes: Float[Tensor, "*where out inp dim"], presence: Float[Tensor, "*where inp"] | None
    ) -> Float[Tensor, "*where out inp"]:
        """The score of each vote."""
        learned = self.query
        query = mean_vote(votes, presence) if learned is None else learned.expand(*votes.shape[:-3], -1, -1)
        if self.score == "dot":
            return dot_score(query, votes)
        if self.score == "general":
            return general_score(query, votes, self.weight)
        return additive_score(query, votes, self.of_query, self.of_vote, self.bias, self.weight)

    def forward(
        self,
        votes: Float[Tensor, "*where out inp dim"],
        *,
        presence: Float[Tensor, "*where inp"] | None = None,
        compete: Compete = over_outputs,
    ) -> Routed:
        return mix_by_logits(votes, self.logits(votes, presence), over=self.divides, presence=presence, compete=compete)
