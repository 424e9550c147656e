"""Heinsen's routing: outputs predict the inputs; each input is used or ignored, at a price."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Routed
from arcaps.competition import over_outputs
from arcaps.functional import layer_norm, mix_votes
from arcaps.kernels import ElementsLast, PositionsLast
from arcaps.kernels.mixing import along_positions
from arcaps.routing.base import Compete, Routing, check_iterations
from arcaps.votes import votes_of_patches


def normalised(capsules: Float[Tensor, "*where dim"]) -> Float[Tensor, "*where dim"]:
    """Each capsule with mean 0 and variance 1; a capsule of one element as it is."""
    return layer_norm(capsules) if capsules.shape[-1] > 1 else capsules


def heinsen_routing(
    votes: Float[Tensor, "*where out inp dim"],
    activity: Float[Tensor, "*where inp"],
    beta_use: Float[Tensor, "out inp"],
    beta_ignore: Float[Tensor, "out inp"],
    similarity: Callable[[Tensor], Tensor],
    *,
    iterations: int = 2,
    presence: Float[Tensor, "*where inp"] | None = None,
    compete: Compete = over_outputs,
) -> Routed:
    """Mix the votes by the net benefit of using an input ("An algorithm for routing vectors in sequences", 2022).

    From `R = compete(0)`, for each iteration:

        D-step   use[n, m] = a[m] f[m] R[n, m];   ignore[n, m] = a[m] f[m] - use[n, m]
        M-step   phi[n, m] = beta_use[n, m] use[n, m] - beta_ignore[n, m] ignore[n, m]
                 s[n] = sum over m of phi[n, m] v[n, m]
        E-step   R = compete(similarity(s))                     not after the last M-step

    `f` is the `activity` in 0..1, `a` the presence. `similarity` gives the logits `(..., out, inp)`: how well the
    output capsules predict the inputs. Returned are `s` and the coefficients `phi`, which have no bounds and may be
    negative.
    """
    active = (activity if presence is None else activity * presence).unsqueeze(-2)  # (..., 1, inp)
    shares = compete(torch.zeros_like(votes[..., 0]))  # (..., out, inp)
    for left in reversed(range(iterations)):
        used = active * shares
        benefit = beta_use * used - beta_ignore * (active - used)  # (..., out, inp)
        capsules = mix_votes(votes, benefit)  # (..., out, dim)
        if left:
            logits = similarity(capsules)
            shares = compete(PositionsLast.apply(logits) if along_positions(votes, logits) else logits)
    return Routed(capsules, benefit)


class HeinsenRouting(Routing, name="heinsen"):
    """Heinsen's routing of vectors, the form of 2022.

        f[m] = sigmoid(<W_A[m], x[m]> / sqrt(inp) + b_A[m])
        x^[n] = W_G2[n] * (W_G1 N(s[n] / sqrt(inp))) + b_G2[n]           a prediction of the inputs; N: LayerNorm
        similarity[n, m] = logsigmoid(W_S[n, m] <x[m], x^[n]> + b_S[n, m])

    The capsule is `N(s / sqrt(inp))`, or `s / sqrt(inp)` with `normalise=False`. Parameters start as the author's: the
    betas standard normal, the maps normal, the biases 0.

    What differs: the votes are those of the layer instead of a factored map of their own, so that routings can be
    compared; the sum, not the inputs, is divided by `sqrt(inp)`; the law of presence, `a`, is ours; one output is
    allowed, though an input then has no choice.
    """

    needs = frozenset({"inputs", "presence", "compete"})
    divides = "neither"

    def __init__(
        self, in_caps: int, out_caps: int, dim: int, *, in_dim: int, iterations: int = 2, normalise: bool = True
    ) -> None:
        super().__init__(in_caps, out_caps, dim)
        check_iterations("heinsen", iterations)
        self.in_dim, self.iterations, self.normalise = in_dim, iterations, normalise
        self.activity_weight = nn.Parameter(2 * in_dim**-0.5 * torch.randn(in_caps, in_dim))
        self.activity_bias = nn.Parameter(torch.zeros(in_caps))
        self.predict = nn.Parameter(dim**-0.5 * torch.randn(dim, in_dim))
        self.predict_scale = nn.Parameter(torch.randn(out_caps, in_dim))
        self.predict_bias = nn.Parameter(torch.zeros(out_caps, in_dim))
        self.similarity_weight = nn.Parameter(in_dim**-0.5 * torch.randn(out_caps, in_caps))
        self.similarity_bias = nn.Parameter(torch.zeros(out_caps, in_caps))
        self.beta_use = nn.Parameter(torch.randn(out_caps, in_caps))
        self.beta_ignore = nn.Parameter(torch.randn(out_caps, in_caps))

    def activity(self, inputs: Float[Tensor, "*where inp in_dim"]) -> Float[Tensor, "*where inp"]:
        """How much there is of each input to be used or ignored, in 0..1."""
        products = votes_of_patches(inputs, self.activity_weight[..., None, None])[..., 0, :, 0]  # (..., inp)
        return (products * self.in_caps**-0.5 + self.activity_bias).sigmoid()

    def similarity(
        self, inputs: Float[Tensor, "*where inp in_dim"], capsules: Float[Tensor, "*where out dim"]
    ) -> Float[Tensor, "*where out inp"]:
        """The logits: how like each input is to what each output capsule predicts."""
        capsules = normalised(capsules)
        if along_positions(capsules):
            capsules = ElementsLast.apply(capsules)
        predicted = torch.addcmul(self.predict_bias, capsules @ self.predict, self.predict_scale)
        products = einsum(inputs, predicted, "... inp d, ... out d -> ... out inp")
        return F.logsigmoid(products * self.similarity_weight + self.similarity_bias)

    def forward(
        self,
        votes: Float[Tensor, "*where out inp dim"],
        *,
        inputs: Float[Tensor, "*where inp in_dim"],
        presence: Float[Tensor, "*where inp"] | None = None,
        compete: Compete = over_outputs,
    ) -> Routed:
        routed = heinsen_routing(
            votes,
            self.activity(inputs),
            self.beta_use,
            self.beta_ignore,
            lambda capsules: self.similarity(inputs, capsules * self.in_caps**-0.5),
            iterations=self.iterations,
            presence=presence,
            compete=compete,
        )
        capsules = routed.capsules * self.in_caps**-0.5
        return Routed(normalised(capsules) if self.normalise else capsules, routed.coefficients)
